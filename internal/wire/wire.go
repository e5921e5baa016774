// Package wire defines what all clients that share locks on a Redis have in common: the names of keys and
// channels, and the text of the scripts. It does no I/O. docs/wire.md describes the arguments and replies of
// each script, for implementers in any language.
package wire

import (
	"cmp"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strconv"
	"strings"
)

// The names of keys and channels that are not locks.
const (
	Companion = "holdfast:"           // prefix of all of them
	Set       = Companion + "set"     // marker of a lock space: see SetKey
	Wake      = Companion + "wake:"   // channel of a client, whose name follows
	Client    = Companion + "client:" // description of a client, whose name follows
	Fence     = Companion + "fence:"  // counter of tokens: see ServerFence and SlotFence
	Queue     = Companion + "queue:"  // waiters of a lock, whose tagged key follows
)

// Empty is the holder that the scripts report for a lock with an empty value. For a key of another type than
// string they report the type, as in "(hash)".
const Empty = "(empty)"

// defaultPrefix is the default prefix of locks.
const defaultPrefix = "lock:"

// SetKey returns the key of the marker for the locks whose keys begin with lockPrefix. The marker holds the
// settings on which their clients agree, and the run of the server in which they admitted it. Lock spaces with
// different prefixes on one server are independent.
func SetKey(lockPrefix string) string {
	if lockPrefix == defaultPrefix {
		return Set
	}
	return Set + ":" + lockPrefix
}

// QueueKey returns the key of the queue of the lock on key. Both share a hash slot, and no two locks share a
// queue.
func QueueKey(key string) string {
	before, after := tagParts(key)
	return Queue + before + key + after
}

// ExpiryMember returns the member of a queue that stores, as a negative score, when the place of owner expires,
// in ms since 1970.
func ExpiryMember(owner string) string { return "!" + owner }

// Counters is the number of counters of tokens on a server outside a cluster. One would be enough for the
// order of tokens. But clients that acquire different locks at the same time reach the nodes of a set in
// different orders. If these locks share a counter, they get different tokens on the nodes and need a second
// round to commit.
const Counters = 256

// ServerCounter returns the index of the server's counter for the lock on key.
func ServerCounter(key string) int { return int(crc16(key)) % Counters }

// ServerFence returns the key of the counter of the lock on key.
func ServerFence(key string) string { return serverFences[ServerCounter(key)] }

var serverFences = func() (all [Counters]string) {
	for i := range all {
		all[i] = Fence + strconv.Itoa(i)
	}
	return all
}()

// SlotFence returns the key of the counter of the lock on key in a cluster: each hash slot has one counter.
func SlotFence(key string) string { return Fence + "{" + SlotTag(Slot(key)) + "}" }

// Tagged returns key in a form that, after a prefix without braces, is in the hash slot of key. Different keys
// have different forms.
func Tagged(key string) string {
	before, after := tagParts(key)
	return before + key + after
}

// tagParts returns the texts that Tagged puts before and after key.
func tagParts(key string) (before, after string) {
	switch {
	case !hasTag(key) && strings.Contains(key, "}"): // the brace would end a tag too early
		return "{" + SlotTag(Slot(key)) + "}", ""
	case !hasTag(key):
		return "{", "}"
	case key[0] == '{' || key[0] == ':':
		return ":", "" // or "{x}" and "x" would share companions
	}
	return "", ""
}

// LockOf returns the key of the lock that a queue belongs to.
func LockOf(queue string) string {
	tagged := strings.TrimPrefix(queue, Queue)
	if key, ok := strings.CutPrefix(tagged, ":"); ok {
		return key
	}
	if tag, ok := strings.CutPrefix(tagged, "{"); ok {
		tag, key, _ := strings.Cut(tag, "}")
		return cmp.Or(key, tag)
	}
	return tagged
}

// hasTag reports whether Redis hashes only a part of key, between braces.
func hasTag(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.Index(rest, "}") > 0
}

// Script is one Lua script. Scripts have no shebang line: with one, the server would reject even a release
// when its memory is full.
type Script struct {
	Text string
	SHA  string // name for EVALSHA
}

func newScript(parts ...string) *Script {
	text := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(text))
	return &Script{Text: text, SHA: hex.EncodeToString(sum[:])}
}

var (
	//go:embed scripts/member.lua
	memberLua string
	//go:embed scripts/decimal.lua
	decimalLua string
	//go:embed scripts/holder.lua
	holderLua string
	//go:embed scripts/taken.lua
	takenLua string
	//go:embed scripts/note.lua
	noteLua string
	//go:embed scripts/seed.lua
	seedLua string
	//go:embed scripts/block.lua
	blockLua string
	//go:embed scripts/count.lua
	countLua string
	//go:embed scripts/queue.lua
	queueLua string
	//go:embed scripts/wake.lua
	wakeLua string
	//go:embed scripts/pass.lua
	passLua string
	//go:embed scripts/prolong.lua
	prolongLua string
	//go:embed scripts/adopt.lua
	adoptLua string
	//go:embed scripts/take.lua
	takeLua string
	//go:embed scripts/free.lua
	freeLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/hand.lua
	handLua string
	//go:embed scripts/commit.lua
	commitLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/force.lua
	forceLua string
	//go:embed scripts/drop.lua
	dropLua string
	//go:embed scripts/inspect.lua
	inspectLua string
	//go:embed scripts/try.lua
	tryLua string
	//go:embed scripts/probe.lua
	probeLua string
	//go:embed scripts/admit.lua
	admitLua string
	//go:embed scripts/step.lua
	stepLua string
)

// The scripts. The first line of each, after the comparison of the marker, names its keys and arguments.
var (
	// Code that most calls need comes first: Lua takes as long to create a function as to run a command, so
	// functions that few calls need come later.
	Acquire = newScript(memberLua, takeLua, decimalLua, holderLua, prolongLua, countLua, takenLua, queueLua, acquireLua,
		seedLua, blockLua, wakeLua, handLua)
	Adopt   = newScript(memberLua, decimalLua, holderLua, countLua, takenLua, queueLua, noteLua, seedLua, blockLua, prolongLua, adoptLua)
	Commit  = newScript(memberLua, decimalLua, holderLua, commitLua)
	Renew   = newScript(memberLua, decimalLua, holderLua, countLua, takenLua, prolongLua, renewLua)
	Release = newScript(memberLua, freeLua, decimalLua, holderLua, seedLua, blockLua, countLua, takenLua, queueLua, wakeLua, passLua, releaseLua)
	Force   = newScript(memberLua, decimalLua, holderLua, countLua, queueLua, noteLua, seedLua, blockLua, wakeLua, passLua, forceLua)
	Drop    = newScript(decimalLua, holderLua, dropLua)
	Inspect = newScript(decimalLua, holderLua, countLua, inspectLua)
	Probe   = newScript(tryLua, probeLua)
	Admit   = newScript(admitLua)
	Step    = newScript(stepLua)
)

// Format is one way to store locks on a node. The scripts of all formats take the same arguments and give the
// same replies.
type Format struct {
	Acquire, Adopt, Commit, Renew, Release, Force, Drop, Inspect, Probe *Script
}

// Plain is the format of docs/wire.md.
var Plain = &Format{
	Acquire: Acquire, Adopt: Adopt, Commit: Commit, Renew: Renew, Release: Release, Force: Force, Drop: Drop,
	Inspect: Inspect, Probe: Probe,
}

// Scripts returns the scripts that are loaded over each checked connection.
func (f *Format) Scripts() []*Script {
	return []*Script{f.Acquire, f.Adopt, f.Commit, f.Renew, f.Release, f.Force, f.Drop, f.Inspect, f.Probe, Admit}
}
