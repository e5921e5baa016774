package main

import (
	"time"
)

// scenario is one load, the same for every peer.
type scenario struct {
	name    string
	clients int  // each with connections of its own
	workers int  // goroutines of each client
	shared  bool // all want one lock; otherwise each has its own
	fresh   bool // each lock has a name that was never used before
	inside  time.Duration
	outside time.Duration
	fault   fault
	nodes   func(n int) bool // numbers of nodes that it is run on; nil: all
}

// fault is what befalls the nodes.
type fault int

const (
	noFault fault = iota
	killed        // the last node, when the measurement begins
	hung          // the same, stopped: its connections stay open
	slow          // a millisecond is added to every reply of every node
)

const slowBy = time.Millisecond

func several(n int) bool { return n >= 3 }

var allScenarios = []scenario{
	{name: "new-latency", clients: 1, workers: 1, fresh: true},
	{name: "new-throughput", clients: 1, workers: 64, fresh: true},
	{name: "latency", clients: 1, workers: 1},
	{name: "throughput", clients: 1, workers: 64},
	{name: "relay", clients: 8, workers: 1, shared: true, inside: time.Millisecond, outside: 2 * time.Millisecond},
	{name: "handoff", clients: 8, workers: 1, shared: true},
	{name: "herd", clients: 1, workers: 64, shared: true},
	{name: "mix", clients: 8, workers: 8, shared: true},
	{name: "dead", clients: 1, workers: 1, fault: killed, nodes: several},
	{name: "hung", clients: 1, workers: 1, fault: hung, nodes: several},
	{name: "slow-1", clients: 1, workers: 1, fault: slow},
	{name: "slow-8", clients: 1, workers: 8, fault: slow},
}

func (s scenario) String() string { return s.name }

// contended says whether anybody has to wait for somebody else.
func (s scenario) contended() bool { return s.shared && s.clients*s.workers > 1 }

// fails says whether a node fails while the others go on.
func (s scenario) fails() bool { return s.fault == killed || s.fault == hung }

// on says whether s is run on n nodes.
func (s scenario) on(n int) bool { return s.nodes == nil || s.nodes(n) }

func names[T interface{ String() string }](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}
