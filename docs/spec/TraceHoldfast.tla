--------------------------- MODULE TraceHoldfast ---------------------------
(***************************************************************************)
(* Whether recorded runs of the code are behaviours of Holdfast. The       *)
(* module Recorded, which verify/spec writes, has the runs: what each node *)
(* and each client did about one lock, in that order. Each step of a run   *)
(* must be a step of the specification that ends in the recorded state. No *)
(* step leaves a choice. So a run is a behaviour if TLC comes to its end,  *)
(* and else it is refused at the first step that TLC cannot take.          *)
(*                                                                         *)
(* What the specification leaves open comes from the run: the clock at     *)
(* which a counter starts, who does not listen, how long a hand-over       *)
(* stands, who asks with a stamp, how much time passes. The configuration  *)
(* puts the operators named Of... below in place of those of Holdfast.     *)
(*                                                                         *)
(* An answer is a step of its own here: it is heard when the code hears    *)
(* it, and it counts from when its own request was sent. Holdfast has it   *)
(* heard at once, and counts from the begin of the round, which is never   *)
(* later.                                                                  *)
(***************************************************************************)
EXTENDS Holdfast, Sequences, Recorded

VARIABLES
  run, pos,      \* the step of Runs that is next
  open,          \* for each step whose answer or wake-up is heard later: the request, and the node before and after it
  top            \* for each node: the highest counter that it ever had
all == <<node, att, sent, taken, disk, broken, may, run, pos, open, top>>

E == Runs[run].steps[pos]

OfFree         == 0
OfTTL          == Runs[run].ttl
OfNote         == 1000000000                \* a note ends by a step of its own, Unnotes
OfR            == E.lasts
OfClock        == IF E.kind = "admits" THEN E.floor - 1 ELSE E.F - Block
OfQueues(s, i) == E.stamped \/ i \in s.queue
OfStamp        == [i \in Ids |-> i]         \* ids are numbered in the order of the stamps

Same == UNCHANGED <<node, att, sent, taken, disk, broken, may>>

(* At first no node has a counter, and none is admitted: its quarantine is over. *)
TraceInit ==
  /\ run \in 1..Len(Runs) /\ pos = 1 /\ open = <<>> /\ top = Zero
  /\ LET Fresh == [ owner |-> Free, tok |-> 0, left |-> 0, F |-> 0, queue |-> {}, noted |-> Nobody, just |-> {}, floor |-> 0, sits |-> 1 ]
     IN node = [n \in Nodes |-> Fresh]
  /\ att = [i \in Ids |-> [ pc |-> "idle", from |-> i, age |-> 0, ans |-> {}, base |-> Zero, until |-> Zero, owed |-> {}, T |-> 0, ttl |-> 0,
                            before |-> {}, ahead |-> {}, later |-> {}, lost |-> FALSE, gone |-> FALSE ]]
  /\ sent = {} /\ taken = {} /\ broken = {}
  /\ disk = [top |-> 0, by |-> {}]
  /\ may = [forget |-> Forgets, lock |-> LosesLock, counter |-> LosesCounter, other |-> Others]

-----------------------------------------------------------------------------
(* A node executes a request. *)

Message ==
  CASE E.ask = "anew"      -> [kind |-> "anew", id |-> E.id, arg |-> E.T, ttl |-> E.ttl]
    [] E.ask = "renew"     -> Request("renew", E.id, E.ttl)
    [] E.ask = "commit"    -> Request("commit", E.id, E.T)
    [] E.ask = "give back" -> Request("give back", E.id, E.n)
    [] E.ask = "force"     -> Request("force", Free, E.id)
    [] OTHER               -> Request(E.ask, E.id, 0)

Says(s, t, m) ==
  CASE m.kind \in {"acquire", "adopt"} -> IF t.owner = m.id THEN "granted" ELSE "denied"
    [] m.kind = "commit"               -> IF Accepts(s, m.id, m.arg) THEN "accepted" ELSE "refused"
    [] m.kind = "renew"                -> IF Keeps(s, m.id) THEN "kept" ELSE "not mine"
    [] m.kind = "anew"                 -> IF Keeps(s, m.id) \/ SetsAgain(s, m.id) THEN "kept" ELSE "not mine"
    [] OTHER                           -> "freed"

(* A hand-over to nobody raises the counter all the same: for the specification another lock was granted. *)
Wasted(s, t) == t.owner = Free /\ s.F > 0 /\ s.queue \cap E.deaf # {} /\ E.F = NewBase(t) + Block - 1

Executes ==
  LET n == E.n
      s == node[n]
      m == Message
      t == Executed(s, m, E.deaf) IN
  /\ MayExecute(n, m)
  /\ m \in sent \/ m.kind = "force" \/ (m.kind = "give back" /\ t = s)   \* a give-back that is executed twice changes nothing
  /\ s.F = 0 /\ t.F > 0 => OfClock >= top[n]
  /\ t.owner = E.owner /\ t.tok = E.tok /\ t.queue = E.queue
  /\ t.F = E.F \/ Wasted(s, t)
  /\ t.owner # Free => t.left <= E.keeps                                  \* it may keep the lock for longer
  /\ E.says = Says(s, t, m)
  /\ node' = [node EXCEPT ![n] = [t EXCEPT !.F = E.F]]
  /\ att'  = [i \in Ids |-> Told(i, n, t, att[i])]
  /\ sent' = Left(m)
  /\ taken' = taken \cup (t.just \ s.just)
  /\ open' = IF E.heard THEN (pos :> [m |-> m, s |-> s, t |-> t, lasts |-> E.lasts]) @@ open ELSE open
  /\ top'  = [top EXCEPT ![n] = Max({@, E.F})]
  /\ UNCHANGED <<disk, broken, may>>

-----------------------------------------------------------------------------
(* A client receives the answer. *)

Closes == open' = [x \in DOMAIN open \ {E.of} |-> open[x]] /\ UNCHANGED top

(* The client trusts the lease for no longer than the specification's client. *)
Trusts == E.trust > 0 => att'[E.id].pc = "holds" /\ Cardinality({n \in Nodes : att'[E.id].until[n] >= E.trust}) >= Q

(* A node that has granted the lock after others made the lease counts too. Holdfast leaves that out. *)
Spare(a, n, o) == IF o.t.owner = E.id /\ Counts(a, n) THEN [a EXCEPT !.until[n] = Max({@, Trust(TTL, E.age)})] ELSE a

Heard(a, o) ==
  LET ttl == CASE o.m.kind = "renew" -> o.m.arg [] o.m.kind = "anew" -> o.m.ttl [] OTHER -> a.ttl
      b == IF Holds(E.id) /\ o.m.kind \in {"acquire", "adopt"} THEN Spare(a, E.n, o)
           ELSE Answer([a EXCEPT !.age = E.age, !.ttl = ttl], E.id, E.n, o.m, o.s, o.t)
  IN [b EXCEPT !.age = a.age, !.ttl = a.ttl, !.ans = IF E.current THEN @ ELSE a.ans]

Hears ==
  /\ E.of \in DOMAIN open /\ open[E.of].m.id = E.id
  /\ att' = [att EXCEPT ![E.id] = Heard(@, open[E.of])]
  /\ Trusts /\ Closes
  /\ UNCHANGED <<node, sent, taken, disk, broken, may>>

(* The code takes a wake-up for a grant only if it is one. *)
Wakes ==
  LET a == att[E.id] IN
  /\ E.of \in DOMAIN open /\ open[E.of].t.owner = E.id /\ open[E.of].m.kind \in {"release", "force"}
  /\ Asking(E.id) /\ E.n \in a.ans /\ Counts(a, E.n)
  /\ att' = [att EXCEPT ![E.id] = [Woken([a EXCEPT !.age = E.age], E.n, open[E.of].t.tok) EXCEPT !.age = a.age]]
  /\ Closes
  /\ UNCHANGED <<node, sent, taken, disk, broken, may>>

-----------------------------------------------------------------------------
(* The release of an id whose trust was over is sent already. *)
Leaves == IF Asking(E.id) \/ Holds(E.id) THEN LetGo(E.id) ELSE att[E.id].pc = "over" /\ Request("release", E.id, 0) \in sent /\ Same

Takes(kind) ==
  CASE kind = "time"       -> Elapse(E.d)
    [] kind = "begins"     -> Begin(E.id) /\ att'[E.id].from = E.from
    [] kind = "chooses"    -> Choose(E.id) /\ att'[E.id].T = E.T
    [] kind = "wins"       -> Win(E.id) /\ att'[E.id].T = E.T /\ Trusts
    [] kind = "spreads"    -> Spread(E.id) /\ Request("commit", E.id, E.T) \in sent'
    [] kind = "renews"     -> NewRound(E.id) /\ att'[E.id].ttl = E.ttl
    [] kind = "sets again" -> SetAgain(E.id)
    [] kind = "renewed"    -> Holds(E.id) /\ Cardinality(att[E.id].ans) >= Q /\ Same /\ Trusts
    [] kind = "uses"       -> Holds(E.id) /\ Same
    [] kind = "gives back" -> PutBack(E.id, E.n)
    [] kind = "ends"       -> Leaves
    [] kind = "lapses"     -> Lapse(E.n)
    [] kind = "unnotes"    -> /\ node[E.n].noted[E.id] <= OfNote - Runs[run].note
                              /\ Becomes(E.n, [node[E.n] EXCEPT !.noted[E.id] = 0]) /\ UNCHANGED may
    [] kind = "vacates"    -> Becomes(E.n, [node[E.n] EXCEPT !.queue = @ \ {E.id}]) /\ UNCHANGED may
    [] kind = "forgets"    -> Forget(E.n) /\ node'[E.n].F = E.F /\ node'[E.n].noted = Nobody
    [] kind = "admits"     -> E.floor > top[E.n] /\ Admit(E.n)
    [] kind = "loses"      -> node[E.n].owner # Free /\ Becomes(E.n, Freed(node[E.n])) /\ UNCHANGED may

TraceNext ==
  /\ pos <= Len(Runs[run].steps)
  /\ CASE E.kind = "executes" -> Executes
       [] E.kind = "hears"    -> Hears
       [] E.kind = "wakes"    -> Wakes
       [] OTHER               -> Takes(E.kind) /\ UNCHANGED <<open, top>>
  /\ pos' = pos + 1 /\ run' = run
  /\ PrintT(<<run, pos>>)

TraceSpec == TraceInit /\ [][TraceNext]_all

(* The promises hold in the runs as well, as far as the faults of the run allow. *)
Promised == Runs[run].sound => P1 /\ P2 /\ P3 /\ P9 /\ P10
=============================================================================
