------------------------------ MODULE Holdfast ------------------------------
(***************************************************************************)
(* The protocol of one lock of Holdfast, on Nodes of which a majority      *)
(* decides, written from docs/protocol.md. Numbers in brackets, such as    *)
(* (10), are the numbered rules of that page, and C1 to C14 its traces.    *)
(* README.md beside this file says what is left out.                       *)
(*                                                                         *)
(* Attempts. An id names one attempt of one client to have the lock, and   *)
(* is never used again. A client that tries again is another id here. An   *)
(* attempt that is "over" and whose release no node ever executes is a     *)
(* client that has died, or one that has detached its lease.               *)
(*                                                                         *)
(* Messages. A request goes to all nodes and stays in the set sent for     *)
(* ever. Each node may execute it at any later moment, any number of       *)
(* times, or never: so messages are late, come twice, overtake one         *)
(* another, are lost, and are executed after their sender has gone. Only   *)
(* a give-back is executed once at most. An answer is lost, or it is in    *)
(* the client's hands at once. A client that hears it later does what one  *)
(* does here that acts on it later: the deadlines count from when the      *)
(* request was sent, and a client chooses which answers it counts.         *)
(*                                                                         *)
(* Time. Each deadline is kept as the time that is left until it, in       *)
(* ticks. Clocks of nodes and clients drift by at most Drift ticks in a    *)
(* TTL: whatever a node keeps for a time may be over that much sooner. It  *)
(* may also be over later, which only keeps others waiting.                *)
(*                                                                         *)
(* Rules. Rule("...") guards each rule that may be switched off by the     *)
(* constant Off. TLC then finds the promise that breaks.                   *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Nodes, Ids,    \* both may be sets of model values
  Waiters,       \* the ids that wait in the queue; the others ask without a stamp
  Adopters,      \* the ids that adopt a lease that another attempt had
  CutOff,        \* the ids whose requests reach all nodes but one, another one for each id
  TTLs,          \* the lease times that a renewal may ask for; an acquire asks for the longest
  Drift,
  Block,         \* tokens for each grant
  MaxToken,      \* a node gives no token above it: that bounds what TLC explores
  Does,          \* what happens beside acquire and release:
                 \*   "time" passes; holders "renew" and "write"; clients ask "again"; waiters "give back"; waiters are "deaf"
                 \*   at times; an operator takes leases by "force";
                 \*   "late": an acquire or adopt is executed after its attempt was granted the lock or gave up;
                 \*   "slow": a node that was admitted again starts a counter that is missing by a clock that is behind;
                 \*   "stale": what a node forgets is also from whom the lock was taken;
                 \*   "spread": a holder asks nodes that have granted another base to commit its token as well
  Forgets,       \* how often a node forgets what it has granted, and sits out its quarantine. If it is the only node, then
                 \*   another server takes over that lacks the newest data: "a node that fails over"
  LosesLock,     \* how often a node forgets the lock alone, and knows nothing of it: beyond the condition "memory"
  LosesCounter,  \* how often a node forgets its counter
  Others,        \* how often another lock that shares a node's counter is granted
  Off            \* the rules that are switched off

VARIABLES
  node,          \* for each node: the lock, its queue, the counter F, from whom the lock was taken, the quarantine
  att,           \* for each id: the knowledge of its client
  sent,          \* the requests
  taken,         \* the ids whose lease somebody wants to force or adopt: P3 excepts these
  disk,          \* a storage that checks tokens: the highest that it has seen, and who has written
  broken,        \* promises about the order of steps that some step has broken
  may            \* how often each fault may still happen
vars == <<node, att, sent, taken, disk, broken, may>>

Rule(r)  == r \notin Off
Max(S)   == CHOOSE x \in S : \A y \in S : x >= y
Less(x, d) == IF x > d THEN x - d ELSE 0
Zero     == [n \in Nodes |-> 0]
Nobody   == [i \in Ids |-> 0]
Lone     == Cardinality(Nodes) = 1
Q        == IF Rule("majority") THEN Cardinality(Nodes) \div 2 + 1 ELSE Cardinality(Nodes) \div 2
TTL      == Max(TTLs)
R        == TTL                                  \* the time that a handed-over lock lasts: min(TTL, 1 s)
Note     == TTL                                  \* how long a node keeps a note of the owner from whom a lock was taken
Free     == "free"                               \* the owner of a free lock
Stamp    == CHOOSE s \in [Ids -> 1..Cardinality(Ids)] : \A i, j \in Ids : s[i] = s[j] => i = j
First(S) == CHOOSE i \in S : \A j \in S : Stamp[i] <= Stamp[j]
Cut      == CHOOSE c \in [Ids -> Nodes] : Cardinality(Ids) <= Cardinality(Nodes) => \A i, j \in Ids : c[i] = c[j] => i = j

(* How long a request that was sent age ticks ago may be trusted once it is answered (3). *)
Trust(ttl, age) == LET t == ttl - (IF Rule("drift") THEN Drift ELSE 0) - (IF Rule("from sending") THEN age ELSE 0)
                   IN IF t > 0 THEN t ELSE 0

Asking(i)    == att[i].pc \in {"asks", "commits"}
Holds(i)     == att[i].pc = "holds"
Committed(i) == att[i].T > 0 /\ att[i].pc # "commits"     \* it has been given the lease, which may be over
Queueing(i)  == Cardinality({n \in Nodes : i \in node[n].queue}) >= Q
Noted(s, i)  == s.noted[i] > Drift                        \* a node in the state s still knows that the lock was taken from i

Init ==
  /\ node = [n \in Nodes |->
       [ owner |-> Free, tok |-> 0, left |-> 0,  \* the lock: its owner, the first of its tokens, the time left
         F     |-> 1,                            \* the highest token promised; 0: the counter is missing
         queue |-> {},                           \* the ids that wait
         noted |-> Nobody,                       \* from whom the lock was forced or adopted, and how much longer that is known
         just  |-> {},                           \* history: from whom since the last tick
         floor |-> 0,                            \* of its admission: no block begins below it
         sits  |-> 0 ] ]                         \* 0: it votes. Else it is in quarantine, for one tick less than that
  /\ att = [i \in Ids |->
       [ pc    |-> "idle",                       \* then "asks", "commits", "holds", "over"
         from  |-> i,                            \* whose lease it adopts
         age   |-> 0,                            \* ticks since the requests of this round were sent
         ans   |-> {},                           \* the nodes that have answered in this round; of a holder: those that kept the lock
         base  |-> Zero,                         \* the token that the client knows it has at each node
         until |-> Zero,                         \* how much longer it counts on each node
         owed  |-> {},                           \* nodes that have not answered a give-back
         T     |-> 0,                            \* its token
         ttl   |-> 0,                            \* what this round of renewals asks for; 0: none yet
         before |-> {},                          \* history: who had been given the lease when this attempt began
         ahead  |-> {},                          \* history: who had its place on a majority by then, with a smaller stamp
         later  |-> {},                          \* history: later grants when the last round of renewals began
         lost   |-> FALSE,                       \* history: q nodes have taken the lease from it, without a tick between them
         gone   |-> FALSE ] ]                    \* history: they had when the last round of renewals began
  /\ sent = {} /\ taken = {} /\ broken = {}
  /\ disk = [top |-> 0, by |-> {}]
  /\ may = [forget |-> Forgets, lock |-> LosesLock, counter |-> LosesCounter, other |-> Others]

-----------------------------------------------------------------------------
(* The actions of a node. Each request changes the state s of a node in one step. Waiters in the set deaf do not listen. *)

(* The condition "counters": a counter starts at the clock, which is above every token that was given. *)
Highest == Max(UNION {{node[n].F, node[n].tok, node[n].floor} : n \in Nodes}
             \cup UNION {{att[i].T} \cup {att[i].base[n] : n \in Nodes} : i \in Ids})
Clock == Highest

(* The first token of the next block. Clients send the floor as "least" with each request that may give a block. *)
NewBase(s) ==
  LET next == IF s.F > 0 THEN s.F + 1
              ELSE IF ~Rule("clock") \/ (s.floor > 0 /\ "slow" \in Does) THEN 1
              ELSE Clock + 1
  IN IF Rule("least") THEN Max({next, s.floor}) ELSE next

Give(s, i, ttl) == [s EXCEPT !.owner = i, !.tok = NewBase(s), !.F = NewBase(s) + Block - 1, !.left = ttl, !.queue = @ \ {i}]
Prolong(s, ttl) == [s EXCEPT !.left = IF Rule("never shortens") THEN Max({@, ttl}) ELSE ttl]
Freed(s)        == [s EXCEPT !.owner = Free, !.tok = 0, !.left = 0]
Queues(s, i)    == i \in Waiters                 \* i asks with a stamp

(* A lock that was taken from i is not given to i again, even by a late request of i, and i gets no place in the queue. *)
Barred(s, i)    == Noted(s, i) /\ Rule("what was taken is not granted again")
Queued(s, i)    == IF Queues(s, i) /\ ~Barred(s, i) THEN [s EXCEPT !.queue = @ \cup {i}] ELSE s

(* The node notes the old owner, for as long as any node may keep a lease that it has just renewed. *)
TakenFrom(s, i) == [s EXCEPT !.queue = @ \ {i}, !.just = @ \cup {i},
                             !.noted[i] = Max({@, IF Rule("a note outlasts the lease") THEN Note ELSE s.left})]

(* The lock passes on to the first waiter that listens. Those before it are dropped. Only a client's clock may start a counter (C1), and a
   node in its quarantine grants nothing. *)
Pass(s, giver, deaf) ==
  LET line == s.queue \ deaf
      next == First(line)
      t    == [s EXCEPT !.queue = {i \in @ : line # {} /\ Stamp[i] >= Stamp[next]}] IN
  CASE s.sits > 0 /\ Rule("quarantine grants nothing") -> Freed(s)
    [] line = {} \/ next = giver                       -> Freed(t)
    [] s.F = 0 /\ Rule("clock")                        -> Freed([t EXCEPT !.queue = @ \ {next}])
    [] OTHER                                           -> Give(t, next, R)

(* A free lock goes to the asker only if no other waiter is first in line (C6). *)
Acquire(s, i, deaf) ==
  CASE s.owner = i /\ s.tok >= s.floor                           -> Prolong(s, TTL)
    [] s.owner = i                                               -> Give(s, i, Max({s.left, TTL}))
    [] Barred(s, i)                                              -> s
    [] s.owner # Free                                            -> Queued(s, i)
    [] ~Rule("first in line")                                    -> Give(s, i, TTL)
    [] Queues(s, i) /\ First((s.queue \ deaf) \cup {i}) = i      -> Give([s EXCEPT !.queue = {j \in @ : Stamp[j] > Stamp[i]}], i, TTL)
    [] ~Queues(s, i) /\ s.queue \ deaf = {}                      -> Give([s EXCEPT !.queue = {}], i, TTL)
    [] OTHER                                                     -> Pass(Queued(s, i), Free, deaf)

(* (14) Only the lock of that owner passes to the adopter, and the node notes from whom it was taken (C9). *)
Adopt(s, i, from) ==
  CASE Barred(s, i)                                              -> s
    [] s.owner = i /\ s.tok >= s.floor                           -> Prolong(s, TTL)
    [] s.owner = i                                               -> Give(s, i, Max({s.left, TTL}))
    [] s.owner = from                                            -> Give(TakenFrom(s, from), i, TTL)
    [] s.owner # Free /\ ~Rule("adopt compares the owner")       -> Give(s, i, TTL)
    [] s.owner = Free /\ ~Rule("adopt takes no free lock")       -> Give(s, i, TTL)
    [] OTHER                                                     -> s

(* The token of the lock becomes T, and no later block is below it. Only the owner's, and only where the node has given nobody
   a higher token since (theorem). A counter that is missing does not start here. *)
Accepts(s, i, T) ==
  /\ s.owner = i \/ ~Rule("commit compares the owner")
  /\ s.tok <= T \/ ~Rule("commit compares the token")
  /\ s.F > 0
Commit(s, i, T) ==
  IF ~Accepts(s, i, T) THEN s
  ELSE [s EXCEPT !.F = Max({@, T + Block - 1}), !.tok = IF s.owner = i THEN T ELSE @]

(* Renew without T. *)
Keeps(s, i)      == s.owner = i
Renew(s, i, ttl) == IF Keeps(s, i) THEN Prolong(s, ttl) ELSE s

(* Renew with T: a free lock is set again, unless it was taken from i. *)
SetsAgain(s, i) == s.owner = Free /\ ~(Noted(s, i) /\ Rule("what was taken is not set again"))
Anew(s, i, T, ttl) == IF SetsAgain(s, i) THEN [s EXCEPT !.owner = i, !.tok = T, !.left = ttl] ELSE Renew(s, i, ttl)

(* Release without a stamp: the owner also leaves the queue. *)
Release(s, i, deaf) ==
  LET t == [s EXCEPT !.queue = @ \ {i}] IN
  IF s.owner \in {i, Free} \/ ~Rule("release compares the owner") THEN Pass(t, Free, deaf) ELSE t

(* Release with a stamp: the owner keeps its place, and does not get the lock itself. *)
GiveBack(s, i, deaf) == IF s.owner = i THEN Pass(Queued(s, i), i, deaf) ELSE Queued(s, i)

(* An operator takes the lock from the grant that he has looked at. *)
Force(s, i, deaf) ==
  IF s.owner = Free \/ (Rule("force compares the owner") /\ s.owner # i) THEN s
  ELSE Pass(TakenFrom(s, s.owner), Free, deaf)

Executed(s, m, deaf) ==
  CASE m.kind = "acquire"   -> Acquire(s, m.id, deaf)
    [] m.kind = "adopt"     -> Adopt(s, m.id, att[m.id].from)
    [] m.kind = "commit"    -> Commit(s, m.id, m.arg)
    [] m.kind = "renew"     -> Renew(s, m.id, m.arg)
    [] m.kind = "anew"      -> Anew(s, m.id, m.arg, m.ttl)
    [] m.kind = "release"   -> Release(s, m.id, deaf)
    [] m.kind = "give back" -> GiveBack(s, m.id, deaf)
    [] m.kind = "force"     -> Force(s, m.arg, deaf)

-----------------------------------------------------------------------------
(* How a client handles an answer, or a wake-up. *)

(* An answer that may be about the time before a give-back is void (C3). *)
Counts(a, n) == n \notin a.owed \/ ~Rule("no grant before a give-back is answered")

(* The client has the lock at node n, with this token, for that long. *)
Grant(a, n, tok, trust) == [a EXCEPT !.base[n] = tok, !.until[n] = Max({@, trust})]

(* One of several nodes sets a free lock again once q have kept it; one that is alone does so in its quarantine. *)
MaySetAgain(i) == Lone \/ Cardinality(att[i].ans) >= Q \/ ~Rule("q nodes kept it first")

(* Node n was in the state s, and is in the state t after the request m of i. *)
Answer(a, i, n, m, s, t) ==
  CASE m.kind \in {"acquire", "adopt"} /\ Asking(i) /\ Counts(a, n) ->
         LET b == [a EXCEPT !.ans = @ \cup {n}] IN
         IF t.owner = i THEN Grant(b, n, t.tok, Trust(TTL, a.age)) ELSE [b EXCEPT !.base[n] = 0, !.until[n] = 0]
    [] m.kind = "commit" /\ a.pc = "commits" /\ a.T = m.arg /\ Counts(a, n) ->
         [a EXCEPT !.base[n] = IF Accepts(s, i, m.arg) THEN m.arg ELSE 0]
    [] m.kind = "renew" /\ Holds(i) /\ a.ttl = m.arg /\ Keeps(s, i) /\ Counts(a, n) ->
         [a EXCEPT !.ans = @ \cup {n}, !.until[n] = Max({@, Trust(m.arg, a.age)})]
    [] m.kind = "anew" /\ Holds(i) /\ a.ttl = m.ttl /\ MaySetAgain(i) /\ (Keeps(s, i) \/ SetsAgain(s, i)) /\ Counts(a, n) ->
         [a EXCEPT !.ans = @ \cup {n}, !.until[n] = Max({@, Trust(m.ttl, a.age)})]
    [] m.kind = "give back" -> [a EXCEPT !.owed = @ \ {n}, !.ans = @ \cup {n}]
    [] OTHER -> a

(* A wake-up counts from the send time of the last request that the node has answered (6). *)
Woken(a, n, tok) == IF n \in a.ans /\ Counts(a, n) THEN Grant(a, n, tok, Trust(R, a.age)) ELSE a

(* History: whether the lease has been taken, now that node n is in the state t. *)
Told(i, n, t, a) ==
  IF Holds(i) /\ Cardinality({m \in Nodes : i \in (IF m = n THEN t ELSE node[m]).just}) >= Q THEN [a EXCEPT !.lost = TRUE] ELSE a

(* A node in its quarantine executes nothing; one that is the only one then keeps what it has. *)
MayExecute(n, m) ==
  /\ m.id \in CutOff => n # Cut[m.id]
  /\ node[n].sits > 0 => Lone /\ m.kind \in {"renew", "anew", "release"}
  /\ m.kind = "anew" /\ Lone => node[n].sits > 0
  /\ m.kind = "give back" => m.arg = n
  /\ m.kind \in {"acquire", "adopt"} => Asking(m.id) \/ "late" \in Does

(* The requests that remain once m is executed. *)
Left(m) == IF m.kind = "give back" THEN sent \ {m} ELSE sent

(* Node n executes a request. Its answer, and the wake-up of the one that it has handed the lock to, are heard or lost. *)
Execute(n, m) ==
  \E deaf \in SUBSET {i \in node[n].queue \ {m.id} : Asking(i) => "deaf" \in Does} :
  LET s      == node[n]
      t      == Executed(s, m, deaf)
      woken  == IF t.owner # s.owner /\ t.owner \notin {Free, m.id} THEN {t.owner} ELSE {}
      tells  == m.kind \in {"release", "force"}    \* the wake-up has the base
      New(i) == CASE i = m.id                                  -> Answer(att[i], i, n, m, s, t)
                  [] tells /\ Rule("wake-ups in their place") -> Woken(att[i], n, t.tok)
                  [] OTHER                                     -> att[i]
      heard  == {i \in (woken \cup {m.id}) \cap Ids : New(i) # att[i]} IN
  /\ MayExecute(n, m)
  /\ t # s \/ heard # {} \/ m.kind = "give back"   \* else nothing happens
  /\ t.F <= MaxToken
  /\ node' = [node EXCEPT ![n] = t]
  /\ \E hear \in SUBSET heard : att' = [i \in Ids |-> Told(i, n, t, IF i \in hear THEN New(i) ELSE att[i])]
  /\ sent' = Left(m) \cup
             {[kind |-> "wake", id |-> i, arg |-> n, tok |-> t.tok] : i \in {j \in woken : tells /\ ~Rule("wake-ups in their place")}}
  /\ UNCHANGED <<taken, disk, broken, may>>

Sent(kind)       == {m \in sent : m.kind = kind}
NodeAcquires(n)  == \E m \in Sent("acquire")   : Execute(n, m)
NodeAdopts(n)    == \E m \in Sent("adopt")     : Execute(n, m)
NodeCommits(n)   == \E m \in Sent("commit")    : Execute(n, m)
NodeRenews(n)    == \E m \in Sent("renew")     : Execute(n, m)
NodeSetsAgain(n) == \E m \in Sent("anew")      : Execute(n, m)
NodeReleases(n)  == \E m \in Sent("release")   : Execute(n, m)
NodeTakesBack(n) == \E m \in Sent("give back") : Execute(n, m)
NodeForces(n)    == \E m \in Sent("force")     : Execute(n, m)

(* Only without the rule: a wake-up is heard at any later time (C7). *)
LateWakeUp == \E m \in Sent("wake") :
  /\ Asking(m.id)
  /\ att' = [att EXCEPT ![m.id] = Woken(@, m.arg, m.tok)]
  /\ UNCHANGED <<node, sent, taken, disk, broken, may>>

-----------------------------------------------------------------------------
(* The actions of a client. *)

Request(kind, i, arg) == [kind |-> kind, id |-> i, arg |-> arg]
Send(m)               == sent' = sent \cup {m}

(* (1), (5), (14) The attempt begins: it asks all nodes for the lock, or for the lease of another. *)
Begin(i) ==
  /\ att[i].pc = "idle"
  /\ \E from \in (IF i \in Adopters THEN {j \in Ids \ Adopters : Committed(j)} ELSE {i}) :
       /\ att' = [att EXCEPT ![i] = [@ EXCEPT !.pc = "asks", !.from = from,
            !.before = {j \in Ids : Committed(j)},
            !.ahead  = {j \in Waiters : Stamp[j] < Stamp[i] /\ Asking(j) /\ Queueing(j)}]]
       /\ Send(Request(IF from = i THEN "acquire" ELSE "adopt", i, 0))
       /\ taken' = taken \cup ({from} \ {i})
  /\ UNCHANGED <<node, disk, broken, may>>

(* (1), (7) It asks once more, and counts from now on. *)
AskAgain(i) ==
  /\ "again" \in Does /\ Asking(i) /\ att[i].age > 0
  /\ att' = [att EXCEPT ![i].age = 0, ![i].ans = {}]
  /\ UNCHANGED <<node, sent, taken, disk, broken, may>>

(* (2) q nodes have granted with different bases: it chooses the highest, and asks them to commit it. One that adopts may
   choose again (14). *)
Choose(i) ==
  LET a == att[i] IN
  /\ a.pc = "asks" \/ (a.pc = "commits" /\ i \in Adopters)
  /\ Rule("commit")
  /\ \E T \in {a.base[n] : n \in Nodes} : T > a.T
       /\ Cardinality({n \in Nodes : a.base[n] \in 1..T}) >= Q /\ Cardinality({n \in Nodes : a.base[n] = T}) < Q
       /\ att' = [att EXCEPT ![i].pc = "commits", ![i].T = T]
       /\ Send(Request("commit", i, T))
  /\ UNCHANGED <<node, taken, disk, broken, may>>

(* (2), (3) q nodes share the token, and it counts on each of them: it has the lease. *)
Win(i) ==
  LET a == att[i] IN \E T \in {a.base[n] : n \in Nodes} \ {0} :
  LET on == {n \in Nodes : /\ a.base[n] = T \/ (a.base[n] \in 1..T /\ ~Rule("commit"))
                           /\ a.until[n] > 0 \/ ~Rule("from sending")
                           /\ Counts(a, n)} IN
  /\ a.pc = "asks" \/ (a.pc = "commits" /\ T = a.T)
  /\ Cardinality(on) >= Q
  /\ att' = [att EXCEPT ![i] = [@ EXCEPT !.pc = "holds", !.T = T, !.base = Zero, !.ans = {}, !.age = 0,
       !.until = [n \in Nodes |-> IF n \notin on THEN 0 ELSE IF Rule("from sending") THEN a.until[n] ELSE Trust(TTL, 0)]]]
  /\ broken' = IF \E j \in a.ahead : Asking(j) /\ Queueing(j) THEN broken \cup {"P6"} ELSE broken
  /\ UNCHANGED <<node, sent, taken, disk, may>>

(* (2) A node that has granted less than what q nodes share, or that grants it late, is asked to commit as well. *)
Spread(i) ==
  /\ "spread" \in Does /\ Holds(i)
  /\ Send(Request("commit", i, att[i].T))
  /\ UNCHANGED <<node, att, taken, disk, broken, may>>

(* (10) It renews at all nodes. *)
NewRound(i) == \E ttl \in TTLs :
  /\ "renew" \in Does /\ Holds(i) /\ (att[i].ttl # ttl \/ att[i].age > 0)
  /\ att' = [att EXCEPT ![i] = [@ EXCEPT !.age = 0, !.ans = {}, !.ttl = ttl,
       !.later = {j \in Ids : Committed(j) /\ att[j].T > att[i].T},
       !.gone  = att[i].lost]]
  /\ Send(Request("renew", i, ttl))
  /\ UNCHANGED <<node, taken, disk, broken, may>>

(* (10) It asks for the lock to be set again where it is free. *)
SetAgain(i) ==
  /\ Holds(i) /\ att[i].ttl > 0 /\ MaySetAgain(i)
  /\ Send([kind |-> "anew", id |-> i, arg |-> att[i].T, ttl |-> att[i].ttl])
  /\ UNCHANGED <<node, att, taken, disk, broken, may>>

Over(i, a) == [a EXCEPT !.pc = "over", !.age = 0, !.ans = {}, !.base = Zero, !.until = Zero, !.owed = {}, !.ttl = 0, !.later = {}, !.ahead = {},
                        !.lost = FALSE, !.gone = FALSE, !.T = IF Committed(i) THEN @ ELSE 0]

(* (9), (12) The caller gives up or releases. If no node executes it, the client has died, or has detached the lease (13). *)
LetGo(i) ==
  /\ Asking(i) \/ Holds(i)
  /\ att' = [att EXCEPT ![i] = Over(i, @)]
  /\ Send(Request("release", i, 0))
  /\ UNCHANGED <<node, taken, disk, broken, may>>

(* (5) A waiter gives back what it was granted, and keeps its place. *)
PutBack(i, n) ==
  /\ "give back" \in Does /\ i \in Waiters /\ att[i].pc = "asks" /\ att[i].base[n] > 0
  /\ att' = [att EXCEPT ![i] = [@ EXCEPT !.base[n] = 0, !.until[n] = 0, !.ans = @ \ {n}, !.owed = @ \cup {n}]]
  /\ Send(Request("give back", i, n))
  /\ UNCHANGED <<node, taken, disk, broken, may>>

(* An operator forces the lease of i. *)
TakeAway(i) ==
  /\ "force" \in Does /\ Holds(i)
  /\ taken' = taken \cup {i}
  /\ Send(Request("force", Free, i))
  /\ UNCHANGED <<node, att, disk, broken, may>>

(* A client that has had the lease writes, even long after that: the condition "stop" does not hold. The storage checks the token. *)
Write(i) ==
  /\ "write" \in Does /\ Committed(i)
  /\ att[i].T >= disk.top \/ ~Rule("storage checks")
  /\ disk' = [top |-> Max({disk.top, att[i].T}), by |-> disk.by \cup {i}]
  /\ broken' = IF \E j \in disk.by : i \in att[j].before THEN broken \cup {"P4"} ELSE broken
  /\ UNCHANGED <<node, att, sent, taken, may>>

-----------------------------------------------------------------------------
(* Time and faults. *)

(* The trust of i after d ticks. A client whose trust is over lets go by itself (11). An age that leaves no trust grows no more. *)
Aged(i, a, d) ==
  LET b == [a EXCEPT !.until = [n \in Nodes |-> Less(@[n], d)],
                     !.age   = IF (Asking(i) \/ a.ttl > 0) /\ @ < TTL /\ Trust(TTL, @) > 0 THEN @ + d ELSE @] IN
  IF Holds(i) /\ Cardinality({n \in Nodes : b.until[n] > 0}) < Q /\ Rule("deadline") THEN Over(i, b) ELSE b

(* Time passes for all, d ticks of it. *)
Elapse(d) ==
  /\ node' = [n \in Nodes |-> [node[n] EXCEPT !.left = Less(@, d), !.sits = IF @ > 0 THEN Max({@ - d, 1}) ELSE 0,
                                               !.noted = [i \in Ids |-> Less(@[i], d)], !.just = {}]]
  /\ att' = [i \in Ids |-> Aged(i, att[i], d)]
  /\ sent' = sent \cup {Request("release", i, 0) : i \in {j \in Ids : Holds(j) /\ att'[j].pc = "over"}}
  /\ UNCHANGED <<taken, disk, broken, may>>

Tick == "time" \in Does /\ Elapse(1)

Becomes(n, s)  == node' = [node EXCEPT ![n] = s] /\ UNCHANGED <<att, sent, taken, disk, broken>>
Fault(f, n, s) == may[f] > 0 /\ may' = [may EXCEPT ![f] = @ - 1] /\ Becomes(n, s)

(* The time of a lock is over, or nearly: the node's clock may be fast. *)
Lapse(n) == node[n].owner # Free /\ node[n].left <= Drift /\ Becomes(n, Freed(node[n])) /\ UNCHANGED may

(* The node forgets the lock, and has an older counter or none. It sits out its quarantine. *)
Forget(n) == \E F \in {0, 1} : \E noted \in {node[n].noted, IF ~Lone \/ "stale" \in Does THEN Nobody ELSE node[n].noted} :
  Fault("forget", n, [Freed(node[n]) EXCEPT !.F = F, !.noted = noted, !.floor = 0, !.queue = IF Lone THEN @ ELSE {},
                                            !.sits = IF Rule("quarantine") THEN TTL + 1 ELSE 0])

(* The quarantine is over. Tokens begin at the clock (C11). *)
Admit(n) ==
  LET floor == IF Rule("admission sets a floor") THEN Clock + 1 ELSE 0 IN
  /\ node[n].sits > 0 /\ node[n].sits - 1 <= Drift
  /\ Becomes(n, [node[n] EXCEPT !.sits = 0, !.floor = floor])
  /\ UNCHANGED may

(* Beyond the condition "memory": the node forgets the lock, and votes. The page admits that a lease goes on if a node forgets
   after it has kept the lock in the round. So it forgets before that here. *)
LoseLock(n) ==
  /\ \A i \in Ids : Holds(i) => Cardinality(att[i].ans) < Q
  /\ \A m \in sent : m.kind # "anew"
  /\ node[n].owner # Free /\ Fault("lock", n, Freed(node[n]))

(* The node loses the counter, and knows nothing of it. *)
LoseCounter(n) == node[n].F > 0 /\ Fault("counter", n, [node[n] EXCEPT !.F = 0])

(* Another lock that shares the counter is granted. *)
GiveAnother(n) == node[n].F > 0 /\ node[n].F + Block <= MaxToken /\ Fault("other", n, [node[n] EXCEPT !.F = @ + Block])

Next ==
  \/ \E n \in Nodes : \/ NodeAcquires(n) \/ NodeAdopts(n) \/ NodeCommits(n) \/ NodeRenews(n) \/ NodeSetsAgain(n)
                      \/ NodeReleases(n) \/ NodeTakesBack(n) \/ NodeForces(n)
                      \/ Lapse(n) \/ Forget(n) \/ Admit(n) \/ LoseLock(n) \/ LoseCounter(n) \/ GiveAnother(n)
  \/ \E i \in Ids : \/ Begin(i) \/ AskAgain(i) \/ Choose(i) \/ Win(i) \/ Spread(i) \/ NewRound(i) \/ SetAgain(i) \/ LetGo(i)
                    \/ TakeAway(i) \/ Write(i) \/ \E n \in Nodes : PutBack(i, n)
  \/ LateWakeUp
  \/ Tick

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The promises. *)

Tokens == 0..MaxToken
TypeOK ==
  /\ node \in [Nodes -> [ owner : Ids \cup {Free}, tok : Tokens, left : 0..TTL, F : 0..MaxToken + Forgets, queue : SUBSET Waiters,
                          noted : [Ids -> 0..TTL], just : SUBSET Ids, floor : 0..MaxToken + Forgets, sits : 0..TTL + 1 ]]
  /\ \A i \in Ids : LET a == att[i] IN
       /\ a.pc \in {"idle", "asks", "commits", "holds", "over"} /\ a.from \in Ids /\ a.age \in 0..TTL
       /\ a.ans \in SUBSET Nodes /\ a.base \in [Nodes -> Tokens] /\ a.until \in [Nodes -> 0..TTL] /\ a.owed \in SUBSET Nodes
       /\ a.T \in Tokens /\ a.ttl \in TTLs \cup {0}
       /\ a.before \in SUBSET Ids /\ a.ahead \in SUBSET Waiters /\ a.later \in SUBSET Ids /\ {a.lost, a.gone} \subseteq BOOLEAN
  /\ \A m \in sent : m.kind \in {"acquire", "adopt", "commit", "renew", "anew", "release", "give back", "force", "wake"}
  /\ taken \in SUBSET Ids /\ disk.top \in Tokens /\ disk.by \in SUBSET Ids /\ broken \in SUBSET {"P4", "P6"}
  /\ \A n \in Nodes : (node[n].owner = Free) = (node[n].tok = 0)

(* Tokens are unique: no two grants have a token in common. *)
P1 == \A i, j \in Ids : i # j /\ Committed(i) /\ Committed(j) => att[i].T >= att[j].T + Block \/ att[j].T >= att[i].T + Block

(* Tokens rise: an attempt that asks after another was granted the lock gets a higher token. *)
P2 == \A j \in Ids : Committed(j) => \A i \in att[j].before : att[j].T > att[i].T

(* One holder at a time. A lease that somebody forces or adopts is excepted until its holder learns of it. *)
P3 == \A i, j \in Ids \ taken : Holds(i) /\ Holds(j) => i = j

(* Without the exception: a holder that did not detach finds out at its next renewal (14), or when it hears of the force. *)
P3strict == \A i, j \in Ids : Holds(i) /\ Holds(j) => i = j

(* No lost update: the storage takes no write from a holder whose successor has written. *)
P4 == "P4" \notin broken

(* Order of arrival: no attempt wins before one that had its place on a majority when it began, and still has it. *)
P6 == "P6" \notin broken

(* The holder learns of a loss: it trusts the lease only while it counts on q nodes. *)
P9 == \A i \in Ids : Holds(i) => Cardinality({n \in Nodes : att[i].until[n] > 0}) >= Q

(* No late or repeated request costs a lock: a node keeps each lock that its holder counts on, or sits out its quarantine. *)
P10 == \A i \in Ids \ taken : Holds(i) => \A n \in Nodes : att[i].until[n] > 0 => node[n].owner = i \/ node[n].sits > 0

(* A lease that was forced or adopted is not renewed: no round that began after q nodes had executed that finds q nodes that keep the lock. *)
Taken == \A i \in Ids : Holds(i) /\ Cardinality(att[i].ans) >= Q => ~att[i].gone

(* A lease is adopted at most once. *)
Once == \A i, j \in Adopters : Committed(i) /\ Committed(j) /\ att[i].from = att[j].from => i = j

(* No lease is renewed by a round that began after another grant was committed. *)
Ends == \A i \in Ids : Holds(i) /\ Cardinality(att[i].ans) >= Q => att[i].later = {}

-----------------------------------------------------------------------------
(* For TLC: values that differ only in their names. *)
Symmetry == Permutations(Nodes)
Alike    == Permutations(Nodes) \cup Permutations(Ids)
=============================================================================
