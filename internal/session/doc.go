// Package session decides what a client does with one connection to a node: which requests it sends, which
// tokens it accepts, when it leaves the connection, when it connects again, and which releases it still owes
// the node. Its types are plain values: time and random numbers are arguments, and no code here waits, locks
// or sends. The driver of package redis, the simulation and the model share these steps.
//
//	connected ──Prepare, CheckGrant, Wake──► requests and answers, above the floor
//	    │
//	    │ Watch.Check: the node is silent, its quarantine is over, or this client stood still
//	    ▼
//	broken ──Ledger.Owe──► releases that may not have been executed
//	    │
//	    │ Redial.Next
//	    ▼
//	connected again ──Ledger.Take──► the owed releases are sent first
//
// A node may come back with older data, and then grant tokens again that other holders have. So each admission
// sets a floor (package member): the lowest token that counts over the following connections.
package session
