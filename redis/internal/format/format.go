// Package format defines how locks are stored on a node: the keys, the calls of the scripts and their replies.
// Plain is Holdfast's own format; locks in Redisson's format are shared with Java programs. No other package
// distinguishes the two.
package format

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Format is one way to store locks.
type Format struct {
	*wire.Format
	loads [][]string
	heads *callHeads
	java  bool // Redisson
}

// The formats.
var (
	Plain    = newFormat(wire.Plain, false)
	Redisson = newFormat(wire.Redisson, true)
)

func newFormat(f *wire.Format, java bool) *Format {
	var loads [][]string
	for _, s := range f.Scripts() {
		loads = append(loads, []string{"SCRIPT", "LOAD", s.Text})
	}
	return &Format{Format: f, loads: loads, heads: newHeads(f), java: java}
}

// LoadCommands returns the commands that load the scripts again after SCRIPT FLUSH.
func (f *Format) LoadCommands() [][]string { return f.loads }

// Encoder returns an encoder of requests to a node with the proof p.
func (f *Format) Encoder(p Proof) *Encoder { return &Encoder{Proof: p, heads: f.heads} }

// Lock returns the keys of a lock. In a cluster all of them are in one hash slot.
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

// SetKey returns the key of the marker for the locks with a prefix.
func (f *Format) SetKey(prefix string) string {
	if f.java {
		prefix = "redisson:" + prefix
	}
	return wire.SetKey(prefix)
}

// SiblingMarker returns the marker of clients that look like clients of this set, and their description; "" if
// there are none.
func (f *Format) SiblingMarker(prefix string) (marker, who string) {
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

// BareBeside reports whether other libraries may lock a name with that prefix under its bare key.
func (f *Format) BareBeside(prefix string) bool { return prefix != "" && !f.java }

// OwnCounters reports whether only Holdfast's clients count tokens, so that clients choose the start of the
// counters.
func (f *Format) OwnCounters() bool { return !f.java }

// Configure adds the format's settings to the configuration of an engine.
func (f *Format) Configure(cfg *engine.Config) {
	if f.java {
		cfg.Shared, cfg.Client = true, quorum.NewUUID()
	}
}

// Set describes the set for which a format is checked.
type Set struct {
	Nodes    int
	Cluster  bool
	Replaced bool // another server may replace a node
}

// CheckFits returns nil if the format fits the set, and otherwise the reason.
func (f *Format) CheckFits(s Set) error {
	switch {
	case !f.java:
		return nil
	case s.Nodes > 1:
		return fmt.Errorf("format redisson is for one server, but %d are given, and Redisson would lock on only one of them; "+
			"give the server that the programs in Java use", s.Nodes)
	case s.Cluster:
		return fmt.Errorf("format redisson is for one server, not for a Redis Cluster: after a failover a thread in Java can at once take " +
			"a lock that the replica has forgotten; give the address of one server")
	case s.Replaced:
		return fmt.Errorf("format redisson is for one server that no other replaces: after a failover a thread in Java can at once take a " +
			"lock that the new server has forgotten; give the address of the server")
	}
	return nil
}

// DefaultPrefix returns the default prefix of names.
func (f *Format) DefaultPrefix() string {
	if f.java {
		return ""
	}
	return "lock:"
}

// redissonPermissions are the additional permissions for locks of Redisson.
const redissonPermissions = "~redisson_lock_* &" + wire.RedissonChannels + "* +hlen +hkeys +hincrby +hscan +type +lindex +lpop +zscore"

// Permissions returns the permissions that the format needs in addition to those of all formats; "" if none.
func (f *Format) Permissions() string {
	if f.java {
		return " " + redissonPermissions
	}
	return ""
}
