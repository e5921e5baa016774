// Package format is how locks are kept on a node: the keys, the calls of the scripts and what they answer. Holdfast's own is
// Plain; by Redisson's, locks are shared with programs in Java. Nobody else asks which of the two it is.
package format

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Format is one way to keep locks.
type Format struct {
	*wire.Format
	loads [][]string
	heads *heads
	java  bool // Redisson's
}

// The formats.
var (
	Plain    = formatOf(wire.Plain, false)
	Redisson = formatOf(wire.Redisson, true)
)

func formatOf(f *wire.Format, java bool) *Format {
	var loads [][]string
	for _, s := range f.Scripts() {
		loads = append(loads, []string{"SCRIPT", "LOAD", s.Text})
	}
	return &Format{Format: f, loads: loads, heads: headsOf(f), java: java}
}

// Loads are the commands that make a server know the scripts, after SCRIPT FLUSH.
func (f *Format) Loads() [][]string { return f.loads }

// Encoder writes requests to a node that is known by p.
func (f *Format) Encoder(p Proof) *Encoder { return &Encoder{Proof: p, heads: f.heads} }

// Lock names the keys of a lock: in a cluster all are in one hash slot.
func (f *Format) Lock(prefix, name string, cluster bool) engine.Lock {
	key := prefix + name
	l := engine.Lock{Name: name, Key: key, Queue: wire.QueueKey(key), Counter: -1, Moves: cluster}
	switch {
	case f.java:
		l.Fence = wire.RedissonFence(l.Key)
	case cluster:
		l.Fence = wire.SlotFence(l.Key)
	default:
		l.Fence, l.Counter = wire.ServerFence(l.Key), wire.ServerCounter(l.Key)
	}
	return l
}

// SetKey names the marker of the locks with a prefix.
func (f *Format) SetKey(prefix string) string {
	if f.java {
		prefix = "redisson:" + prefix
	}
	return wire.SetKey(prefix)
}

// Sibling names the marker of clients that a user may take for clients of this set,
// and says which they are; "" where there are none.
func (f *Format) Sibling(prefix string) (marker, who string) {
	switch {
	case f.java:
		return wire.Set, "clients without format=redisson"
	case prefix == "":
		return wire.Set, "clients without bare=true"
	case f.SetKey(prefix) == wire.Set:
		return wire.SetKey(""), "clients with bare=true"
	}
	return "", ""
}

// BareBeside says whether other libraries may lock a name of that prefix by its bare key.
func (f *Format) BareBeside(prefix string) bool { return prefix != "" && !f.java }

// OwnCounters says whether nobody but Holdfast's clients counts tokens, which then begin where the clients say.
func (f *Format) OwnCounters() bool { return !f.java }

// Configure adds to the configuration of an engine what the format asks for.
func (f *Format) Configure(cfg *engine.Config) {
	if f.java {
		cfg.Shared, cfg.Client = true, quorum.NewUUID()
	}
}

// Set is what a format has to fit.
type Set struct {
	Nodes    int
	Cluster  bool
	Replaced bool // another server may take the place of a node
}

// Fits returns why the format is not for a set; nil where it is.
func (f *Format) Fits(s Set) error {
	switch {
	case !f.java:
		return nil
	case s.Nodes > 1:
		return fmt.Errorf("format redisson is for one server, and these are %d, of which Redisson would lock on one alone; "+
			"give the server that the programs in Java use", s.Nodes)
	case s.Cluster:
		return fmt.Errorf("format redisson is for one server, not for a Redis Cluster, where a replica takes over and a thread in Java " +
			"takes a lock at once that it forgot; give the address of one server")
	case s.Replaced:
		return fmt.Errorf("format redisson is for one server that no other replaces: a thread in Java takes a lock at once that the new server forgot; " +
			"give the address of the server")
	}
	return nil
}

// DefaultPrefix goes before the names where none is chosen.
func (f *Format) DefaultPrefix() string {
	if f.java {
		return ""
	}
	return "lock:"
}

// rights are what a user needs for locks of Redisson besides.
const rights = "~redisson_lock_* &" + wire.RedissonChannels + "* +hlen +hkeys +hincrby +hscan +type +lindex +lpop +zscore"

// Rights are what a user needs for the format besides the rights for all; "" where there are none.
func (f *Format) Rights() string {
	if f.java {
		return " " + rights
	}
	return ""
}
