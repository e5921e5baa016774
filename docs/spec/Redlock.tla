------------------------------ MODULE Redlock ------------------------------
(***************************************************************************)
(* Redlock as it is published (https://redis.io/docs/latest/develop/       *)
(* clients/patterns/distributed-locks/), with the two cases that its       *)
(* critics name: a client that is paused between the look at its clock     *)
(* and its write, and a server that restarts without its memory.           *)
(*                                                                         *)
(* A client sends SET NX PX with a random value to all servers, and has    *)
(* the lock if a majority sets it before the TTL less the elapsed time and *)
(* the drift is over. It releases by a script that compares the value.     *)
(* Messages, answers and time are as in Holdfast.tla.                      *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Nodes, Clients, TTL, Drift,
  Pauses,          \* time may pass between a client's look at its clock and its write
  Restarts,        \* how often a server restarts without its memory
  DelayedRestart   \* it then stays down for one TTL, as the page proposes

VARIABLES
  owner, left,     \* on each server: whose value the key has, and for how long
  down,            \* for how long a server is down
  pc, age, got,    \* on each client: what it does, ticks since it sent its requests, the servers that have set its value
  valid,           \* for how much longer its lock is valid
  before,          \* history: who had had the lock when it began
  sent,            \* the requests
  wrote, stale,    \* the storage: who has written; a client whose successor had written was one of them
  restarts
vars == <<owner, left, down, pc, age, got, valid, before, sent, wrote, stale, restarts>>
servers == <<owner, left, down, restarts>>
clients == <<pc, age, got, valid, before>>
storage == <<wrote, stale>>

Free    == "free"
Q       == Cardinality(Nodes) \div 2 + 1
Less(x) == IF x > 0 THEN x - 1 ELSE 0

Init ==
  /\ owner = [n \in Nodes |-> Free] /\ left = [n \in Nodes |-> 0] /\ down = [n \in Nodes |-> 0]
  /\ pc = [c \in Clients |-> "idle"] /\ age = [c \in Clients |-> 0] /\ got = [c \in Clients |-> {}]
  /\ valid = [c \in Clients |-> 0] /\ before = [c \in Clients |-> {}]
  /\ sent = {} /\ wrote = {} /\ stale = FALSE /\ restarts = Restarts

Ask(c) ==
  /\ pc[c] = "idle" /\ pc' = [pc EXCEPT ![c] = "asks"]
  /\ before' = [before EXCEPT ![c] = {d \in Clients : pc[d] \in {"holds", "looked", "done"}}]
  /\ sent' = sent \cup {<<"set", c>>}
  /\ UNCHANGED <<servers, storage, age, got, valid>>

Set(n, c) ==  \* SET NX PX
  /\ <<"set", c>> \in sent /\ down[n] = 0 /\ owner[n] = Free
  /\ owner' = [owner EXCEPT ![n] = c] /\ left' = [left EXCEPT ![n] = TTL]
  /\ \/ pc[c] = "asks" /\ got' = [got EXCEPT ![c] = @ \cup {n}]
     \/ UNCHANGED got
  /\ UNCHANGED <<down, restarts, pc, age, valid, before, sent, storage>>

Delete(n, c) ==  \* compares the value
  /\ <<"delete", c>> \in sent /\ down[n] = 0 /\ owner[n] = c
  /\ owner' = [owner EXCEPT ![n] = Free] /\ left' = [left EXCEPT ![n] = 0]
  /\ UNCHANGED <<down, restarts, clients, sent, storage>>

Win(c) ==
  /\ pc[c] = "asks" /\ Cardinality(got[c]) >= Q /\ TTL - Drift - age[c] > 0
  /\ pc' = [pc EXCEPT ![c] = "holds"] /\ valid' = [valid EXCEPT ![c] = TTL - Drift - age[c]]
  /\ got' = [got EXCEPT ![c] = {}] /\ age' = [age EXCEPT ![c] = 0]
  /\ UNCHANGED <<servers, storage, before, sent>>

Look(c) ==  \* the lock is valid: now write
  /\ pc[c] = "holds" /\ valid[c] > 0 /\ pc' = [pc EXCEPT ![c] = "looked"]
  /\ UNCHANGED <<servers, storage, age, got, valid, before, sent>>

Write(c) ==
  /\ pc[c] = "looked" /\ pc' = [pc EXCEPT ![c] = "holds"]
  /\ wrote' = wrote \cup {c}
  /\ stale' = (stale \/ \E d \in wrote : c \in before[d])
  /\ UNCHANGED <<servers, age, got, valid, before, sent>>

LetGo(c) ==  \* releases; where no server executes it, the client has died
  /\ pc[c] \in {"asks", "holds"}
  /\ pc' = [pc EXCEPT ![c] = IF @ = "asks" THEN "failed" ELSE "done"]
  /\ sent' = sent \cup {<<"delete", c>>}
  /\ valid' = [valid EXCEPT ![c] = 0] /\ got' = [got EXCEPT ![c] = {}] /\ age' = [age EXCEPT ![c] = 0]
  /\ UNCHANGED <<servers, storage, before>>

Tick ==
  /\ Pauses \/ \A c \in Clients : pc[c] # "looked"
  /\ left' = [n \in Nodes |-> Less(left[n])] /\ down' = [n \in Nodes |-> Less(down[n])]
  /\ valid' = [c \in Clients |-> Less(valid[c])]
  /\ age' = [c \in Clients |-> IF pc[c] = "asks" /\ age[c] < TTL THEN age[c] + 1 ELSE age[c]]
  /\ UNCHANGED <<owner, restarts, pc, got, before, sent, storage>>

Lapse(n) ==
  /\ owner[n] # Free /\ left[n] <= Drift
  /\ owner' = [owner EXCEPT ![n] = Free] /\ left' = [left EXCEPT ![n] = 0]
  /\ UNCHANGED <<down, restarts, clients, sent, storage>>

Restart(n) ==
  /\ restarts > 0 /\ restarts' = restarts - 1
  /\ owner' = [owner EXCEPT ![n] = Free] /\ left' = [left EXCEPT ![n] = 0]
  /\ down' = [down EXCEPT ![n] = IF DelayedRestart THEN TTL ELSE 0]
  /\ UNCHANGED <<clients, sent, storage>>

Next ==
  \/ \E c \in Clients : Ask(c) \/ Win(c) \/ Look(c) \/ Write(c) \/ LetGo(c) \/ \E n \in Nodes : Set(n, c) \/ Delete(n, c)
  \/ Tick
  \/ \E n \in Nodes : Lapse(n) \/ Restart(n)

Spec == Init /\ [][Next]_vars

TypeOK ==
  /\ owner \in [Nodes -> Clients \cup {Free}] /\ left \in [Nodes -> 0..TTL] /\ down \in [Nodes -> 0..TTL]
  /\ pc \in [Clients -> {"idle", "asks", "holds", "looked", "done", "failed"}] /\ age \in [Clients -> 0..TTL]
  /\ got \in [Clients -> SUBSET Nodes] /\ valid \in [Clients -> 0..TTL] /\ before \in [Clients -> SUBSET Clients]
  /\ sent \in SUBSET ({"set", "delete"} \X Clients) /\ wrote \in SUBSET Clients /\ stale \in BOOLEAN /\ restarts \in 0..Restarts

(* P3 of Holdfast: one client at a time has a valid lock. *)
P3 == \A c, d \in Clients : valid[c] > 0 /\ valid[d] > 0 => c = d

(* P4 of Holdfast: the storage takes no write from a client whose successor has written. *)
P4 == ~stale

Alike == Permutations(Nodes) \cup Permutations(Clients)
=============================================================================
