// Package wire is what clients have to agree on who share locks on one Redis:
// the names of the keys and channels, and the text of the scripts. It has no
// I/O. What each script takes and answers, for implementers in any language, is
// in docs/wire.md.
package wire

import (
	"cmp"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strconv"
	"strings"
)

// Names on a node that are not locks.
const (
	Companion = "holdfast:"           // what all of them begin with
	Set       = Companion + "set"     // the marker of a lock space: see SetKey
	Wake      = Companion + "wake:"   // channel of a client, whose name follows
	Client    = Companion + "client:" // who a client is, whose name follows
	Fence     = Companion + "fence:"  // a counter of tokens: see ServerFence and SlotFence
	Queue     = Companion + "queue:"  // waiters of a lock, whose tagged key follows
)

// Empty is how the scripts name the holder of a lock whose value is the empty text. A
// key of another type than text they name by that, as in "(hash)".
const Empty = "(empty)"

// prefix is that of locks where no other is chosen.
const prefix = "lock:"

// SetKey names the marker of the locks whose keys begin with lockPrefix: on what
// their clients agree, and in which run of the server they admitted it. Lock spaces
// with different prefixes on one server know nothing of one another.
func SetKey(lockPrefix string) string {
	if lockPrefix == prefix {
		return Set
	}
	return Set + ":" + lockPrefix
}

// QueueKey names the queue of the lock on key, so that both share a hash slot, and no two
// locks share a queue.
func QueueKey(key string) string {
	before, after := tags(key)
	return Queue + before + key + after
}

// LapseOf names the member of a queue whose score is when the place of owner lapses: that in ms since 1970, negative.
func LapseOf(owner string) string { return "!" + owner }

// Counters is how many counters of tokens a server has that is not part of a cluster. One would do for the tokens'
// order; but clients that take different locks at once reach the nodes of a set in different orders, and where these
// locks share a counter, they then get different tokens there and must commit in a second round.
const Counters = 256

// ServerCounter is which of a server's counters the lock on key has, from 0 on.
func ServerCounter(key string) int { return int(crc(key)) % Counters }

// ServerFence names the counter of the lock on key.
func ServerFence(key string) string { return serverFences[ServerCounter(key)] }

var serverFences = func() (all [Counters]string) {
	for i := range all {
		all[i] = Fence + strconv.Itoa(i)
	}
	return all
}()

// SlotFence names the counter of the lock on key in a cluster, which is that of its hash slot.
func SlotFence(key string) string { return Fence + "{" + SlotTag(Slot(key)) + "}" }

// Tagged puts what goes with key into its hash slot, where it follows a prefix without braces, and no two keys share one.
func Tagged(key string) string {
	before, after := tags(key)
	return before + key + after
}

// tags are what stands before and after key in Tagged.
func tags(key string) (before, after string) {
	switch {
	case !hasTag(key) && strings.Contains(key, "}"): // which would end a tag too early
		return "{" + SlotTag(Slot(key)) + "}", ""
	case !hasTag(key):
		return "{", "}"
	case key[0] == '{' || key[0] == ':':
		return ":", "" // the companions of "{x}" are not those of "x"
	}
	return "", ""
}

// LockOf is the key of the lock that a queue belongs to.
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

// hasTag says whether Redis hashes only a part of key, between braces.
func hasTag(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.Index(rest, "}") > 0
}

// Script is one Lua script. Scripts are plain, without a shebang line, which
// would have the server refuse even a release when its memory is full.
type Script struct {
	Text string
	SHA  string // by which EVALSHA calls it
}

func script(parts ...string) *Script {
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

// The scripts. Keys and arguments stand in the first line of each, after the comparison of the marker.
var (
	// What answers most calls stands before the functions that the others need: to make those takes Lua as long as a command.
	Acquire = script(memberLua, takeLua, decimalLua, holderLua, prolongLua, countLua, takenLua, queueLua, acquireLua,
		seedLua, blockLua, wakeLua, handLua)
	Adopt   = script(memberLua, decimalLua, holderLua, countLua, takenLua, queueLua, noteLua, seedLua, blockLua, prolongLua, adoptLua)
	Commit  = script(memberLua, decimalLua, holderLua, commitLua)
	Renew   = script(memberLua, decimalLua, holderLua, countLua, takenLua, prolongLua, renewLua)
	Release = script(memberLua, freeLua, decimalLua, holderLua, seedLua, blockLua, countLua, takenLua, queueLua, wakeLua, passLua, releaseLua)
	Force   = script(memberLua, decimalLua, holderLua, countLua, queueLua, noteLua, seedLua, blockLua, wakeLua, passLua, forceLua)
	Drop    = script(decimalLua, holderLua, dropLua)
	Inspect = script(decimalLua, holderLua, countLua, inspectLua)
	Probe   = script(tryLua, probeLua)
	Admit   = script(admitLua)
	Step    = script(stepLua)
)

// Format is how locks are kept on a node: scripts that take the same arguments and answer the same.
type Format struct {
	Acquire, Adopt, Commit, Renew, Release, Force, Drop, Inspect, Probe *Script
}

// Plain is the format of docs/wire.md.
var Plain = &Format{
	Acquire: Acquire, Adopt: Adopt, Commit: Commit, Renew: Renew, Release: Release, Force: Force, Drop: Drop,
	Inspect: Inspect, Probe: Probe,
}

// Scripts is what every checked connection has loaded.
func (f *Format) Scripts() []*Script {
	return []*Script{f.Acquire, f.Adopt, f.Commit, f.Renew, f.Release, f.Force, f.Drop, f.Inspect, f.Probe, Admit}
}
