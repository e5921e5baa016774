----------------------------- MODULE ReadWrite -----------------------------
(***************************************************************************)
(* A read and write lock made of plain locks (docs/kinds.md): a gate, and  *)
(* a place for each reader. A reader takes the gate and any place, and     *)
(* releases the gate; a writer takes the gate and all places. A writer     *)
(* that reads on releases all but one place.                               *)
(*                                                                         *)
(* Each lock is atomic, as Holdfast.tla shows that it may be taken to be:  *)
(* the service gives it to one owner at a time, with a token for the gate  *)
(* that rises, and gives it to another only when its holder trusts it no   *)
(* more. A holder may lose its trust at any moment. What it asked for      *)
(* before may be granted after that.                                       *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Readers, Writers, Places,
  MaxToken,  \* grants of the gate
  Forces,    \* how often an operator takes the gate from a holder that goes on to trust it
  Off        \* rules that are switched off

VARIABLES
  owner,     \* of each lock at the service
  trusted,   \* pairs of a caller and a lock that it may rely on
  pc, token, \* of each caller
  next,      \* the next token of the gate
  highest, highestWrite, \* of those that have begun to work, and of the writers among them
  ordered,   \* history: each began to work in the order of its token
  forces
vars == <<owner, trusted, pc, token, next, highest, highestWrite, ordered, forces>>

Callers == Readers \cup Writers
Gate    == "gate"
Locks   == Places \cup {Gate}
Free    == "free"
Rule(r) == r \notin Off
Max(a, b) == IF a > b THEN a ELSE b

Busy    == {"works", "reads"}
Has(c)    == {l \in Locks : <<c, l>> \in trusted}
Missed    == CHOOSE l \in Places : TRUE
Needed    == IF Rule("a writer has all places") THEN Places ELSE Places \ {Missed}
Gateless(c) == c \in Writers /\ ~Rule("a writer takes the gate")

Init ==
  /\ owner = [l \in Locks |-> Free] /\ trusted = {}
  /\ pc = [c \in Callers |-> "idle"] /\ token = [c \in Callers |-> 0]
  /\ next = 1 /\ highest = 0 /\ highestWrite = 0 /\ ordered = TRUE /\ forces = Forces

TakeGate(c) ==
  /\ pc[c] = "idle" /\ next <= MaxToken
  /\ IF Gateless(c) THEN UNCHANGED <<owner, trusted>>
     ELSE owner[Gate] = Free /\ owner' = [owner EXCEPT ![Gate] = c] /\ trusted' = trusted \cup {<<c, Gate>>}
  /\ pc' = [pc EXCEPT ![c] = "inside"] /\ token' = [token EXCEPT ![c] = next] /\ next' = next + 1
  /\ UNCHANGED <<highest, highestWrite, ordered, forces>>

LeaveGate(c) ==  \* before it has a place
  /\ ~Rule("the gate is kept until the place is granted") /\ c \in Readers /\ pc[c] = "inside" /\ Gate \in Has(c)
  /\ trusted' = trusted \ {<<c, Gate>>}
  /\ UNCHANGED <<owner, pc, token, next, highest, highestWrite, ordered, forces>>

TakePlace(c, l) ==  \* whether or not it still trusts the gate
  /\ pc[c] = "inside" /\ owner[l] = Free
  /\ IF c \in Writers THEN l \in Needed ELSE Has(c) \cap Places = {}
  /\ owner' = [owner EXCEPT ![l] = c] /\ trusted' = trusted \cup {<<c, l>>}
  /\ UNCHANGED <<pc, token, next, highest, highestWrite, ordered, forces>>

Passes(c) ==
  \/ Gate \in Has(c) \/ Gateless(c) \/ ~Rule("the gate is looked at after the place")
  \/ c \in Readers /\ ~Rule("the gate is kept until the place is granted")

Begin(c) ==
  /\ pc[c] = "inside" /\ Passes(c)
  /\ IF c \in Writers THEN Needed \subseteq Has(c) ELSE Has(c) \cap Places # {}
  /\ pc' = [pc EXCEPT ![c] = "works"]
  /\ trusted' = trusted \ IF c \in Readers THEN {<<c, Gate>>}
                          ELSE IF Rule("a writer keeps the places") THEN {} ELSE {c} \X Places
  /\ ordered' = (ordered /\ token[c] > IF c \in Readers THEN highestWrite ELSE highest)
  /\ highest' = Max(highest, token[c])
  /\ highestWrite' = IF c \in Writers THEN Max(highestWrite, token[c]) ELSE highestWrite
  /\ UNCHANGED <<owner, token, next, forces>>

Downgrade(c) ==  \* the writer reads on, with the token that it has
  /\ c \in Writers /\ pc[c] = "works" /\ pc' = [pc EXCEPT ![c] = "reads"]
  /\ \E l \in Has(c) \cap Places :
       trusted' = trusted \ ({c} \X IF Rule("a writer that reads on keeps a place") THEN Locks \ {l} ELSE Locks)
  /\ UNCHANGED <<owner, token, next, highest, highestWrite, ordered, forces>>

End(c) ==  \* it has finished, or gives up
  /\ pc[c] # "idle" /\ pc' = [pc EXCEPT ![c] = "idle"]
  /\ trusted' = trusted \ ({c} \X Locks)
  /\ UNCHANGED <<owner, token, next, highest, highestWrite, ordered, forces>>

Lose(c, l) ==  \* one that works stops
  /\ <<c, l>> \in trusted
  /\ IF pc[c] \in Busy THEN /\ pc' = [pc EXCEPT ![c] = "idle"] /\ trusted' = trusted \ ({c} \X Locks)
     ELSE trusted' = trusted \ {<<c, l>>} /\ UNCHANGED pc
  /\ UNCHANGED <<owner, token, next, highest, highestWrite, ordered, forces>>

Lapse(l) ==  \* or it was released
  /\ owner[l] # Free /\ <<owner[l], l>> \notin trusted
  /\ owner' = [owner EXCEPT ![l] = Free]
  /\ UNCHANGED <<trusted, pc, token, next, highest, highestWrite, ordered, forces>>

Force ==
  /\ forces > 0 /\ owner[Gate] # Free /\ forces' = forces - 1
  /\ owner' = [owner EXCEPT ![Gate] = Free]
  /\ UNCHANGED <<trusted, pc, token, next, highest, highestWrite, ordered>>

Next ==
  \/ \E c \in Callers : TakeGate(c) \/ LeaveGate(c) \/ Begin(c) \/ Downgrade(c) \/ End(c)
  \/ \E c \in Callers, l \in Places : TakePlace(c, l)
  \/ \E c \in Callers, l \in Locks : Lose(c, l)
  \/ \E l \in Locks : Lapse(l)
  \/ Force

Spec == Init /\ [][Next]_vars

TypeOK ==
  /\ owner \in [Locks -> Callers \cup {Free}] /\ trusted \subseteq Callers \X Locks
  /\ pc \in [Callers -> {"idle", "inside", "works", "reads"}] /\ token \in [Callers -> 0..MaxToken] /\ next \in 1..(MaxToken + 1)
  /\ highest \in 0..MaxToken /\ highestWrite \in 0..MaxToken /\ ordered \in BOOLEAN /\ forces \in 0..Forces

(* A writer works alone, until it reads on. *)
Exclusion == \A c \in Writers, d \in Callers : pc[c] = "works" /\ pc[d] \in Busy => c = d

(* A writer has a token above all that began before it, and below all that begin after it. *)
Order == ordered

(* No two callers wait for one another: each has a place, lacks one, and would keep on. *)
Waits(c) ==
  /\ pc[c] = "inside" /\ (Gate \in Has(c) \/ Gateless(c)) /\ Has(c) \cap Places # {}
  /\ c \in Writers /\ \E l \in Needed : owner[l] # Free /\ <<c, l>> \notin trusted
NoCircle == ~\E c, d \in Callers : c # d /\ Waits(c) /\ Waits(d)
=============================================================================
