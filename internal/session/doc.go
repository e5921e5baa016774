// Package session decides what a client may do over one connection to a node: which requests it sends, which tokens it uses,
// when it leaves the connection, when it tries the next one, and which releases it still owes the node. All of it are plain
// values: the time and random numbers come in as arguments, and nothing here waits, locks or sends. The driver of package
// redis, the simulation and the model take the same steps.
//
//	connected ──Prepare, CheckGrant, Wake──► requests and answers, above the floor
//	    │
//	    │ Watch.Look: the node is silent, its quarantine is over, or this client stood still
//	    ▼
//	broken ──Ledger.Owe──► what may not have been executed
//	    │
//	    │ Redial.Next
//	    ▼
//	connected again ──Ledger.Take──► what is owed is sent first
//
// A node may come back with older data, and then gives tokens again that others have. So each admission names a floor
// (package member): the first token that counts over the connections that follow.
package session
