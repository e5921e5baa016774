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
	"strings"
)

// Names on a node that are not locks.
const (
	Companion = "holdfast:"           // what all of them begin with
	Set       = Companion + "set"     // the marker of a lock space: see SetKey
	Wake      = Companion + "wake:"   // channel of a client, whose name follows
	Client    = Companion + "client:" // who a client is, whose name follows
	Fence     = Companion + "fence:"  // counter of a lock, whose tagged key follows
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

// Companions names the counter and the queue of the lock on key, so that all
// three share a hash slot, and no two locks share a companion.
func Companions(key string) (fenceKey, queueKey string) {
	before, after := tags(key)
	both := Fence + before + key + after + Queue + before + key + after // one piece of memory, as both are made for each claim
	end := len(Fence) + len(before) + len(key) + len(after)
	return both[:end], both[end:]
}

// Tagged is what follows the prefix in the name of a companion of key: it puts
// the companion into the hash slot of key, and no two keys share one.
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

// LockOf is the key of the lock that a counter or a queue belongs to.
func LockOf(companion string) string {
	tagged, ok := strings.CutPrefix(companion, Fence)
	if !ok {
		tagged = strings.TrimPrefix(companion, Queue)
	}
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
	//go:embed scripts/holder.lua
	holderLua string
	//go:embed scripts/seed.lua
	seedLua string
	//go:embed scripts/block.lua
	blockLua string
	//go:embed scripts/queue.lua
	queueLua string
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
	//go:embed scripts/commit.lua
	commitLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/reclaim.lua
	reclaimLua string
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
)

// The scripts. Keys and arguments stand in the first line of each, after the comparison of the marker.
var (
	Acquire = script(memberLua, takeLua, holderLua, seedLua, blockLua, queueLua, passLua, prolongLua, acquireLua)
	Adopt   = script(memberLua, holderLua, seedLua, blockLua, prolongLua, adoptLua)
	Commit  = script(memberLua, holderLua, commitLua)
	Renew   = script(memberLua, holderLua, seedLua, prolongLua, renewLua)
	Reclaim = script(memberLua, reclaimLua)
	Release = script(memberLua, freeLua, holderLua, seedLua, blockLua, queueLua, passLua, releaseLua)
	Force   = script(memberLua, holderLua, seedLua, blockLua, queueLua, passLua, forceLua)
	Drop    = script(holderLua, dropLua)
	Inspect = script(holderLua, inspectLua)
	Probe   = script(tryLua, probeLua)
	Admit   = script(admitLua)
)

// Format is how locks are kept on a node: scripts that take the same arguments and answer the same.
type Format struct {
	Acquire, Adopt, Commit, Renew, Reclaim, Release, Force, Drop, Inspect, Probe *Script
}

// Plain is the format of docs/wire.md.
var Plain = &Format{
	Acquire: Acquire, Adopt: Adopt, Commit: Commit, Renew: Renew, Reclaim: Reclaim, Release: Release, Force: Force, Drop: Drop,
	Inspect: Inspect, Probe: Probe,
}

// Scripts is what every checked connection has loaded.
func (f *Format) Scripts() []*Script {
	return []*Script{f.Acquire, f.Adopt, f.Commit, f.Renew, f.Reclaim, f.Release, f.Force, f.Drop, f.Inspect, f.Probe, Admit}
}
