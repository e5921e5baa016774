package wire

import (
	_ "embed"
	"strings"
)

// Names that Redisson gives to what goes with a lock, whose name follows.
const (
	redissonToken    = "redisson_lock_token"    // the counter of RFencedLock
	RedissonChannels = "redisson_lock__channel" // of releases
)

// RedissonFence is the key of the counter that Redisson's fenced locks have for the lock on key.
func RedissonFence(key string) string { return redissonName(redissonToken, key) }

// RedissonChannel is where Redisson publishes that the lock on key is free. To a thread that waits by
// RFairLock it publishes on this, a colon, and the owner id of the thread.
func RedissonChannel(key string) string { return redissonName(RedissonChannels, key) }

func redissonName(what, key string) string {
	if strings.Contains(key, "{") {
		return what + ":" + key
	}
	return what + ":{" + key + "}"
}

var (
	//go:embed scripts/redisson/names.lua
	redissonNames string
	//go:embed scripts/redisson/free.lua
	redissonFree string
	//go:embed scripts/redisson/block.lua
	redissonBlock string
	//go:embed scripts/redisson/pass.lua
	redissonPass string
	//go:embed scripts/redisson/acquire.lua
	redissonAcquire string
	//go:embed scripts/redisson/adopt.lua
	redissonAdopt string
	//go:embed scripts/redisson/commit.lua
	redissonCommit string
	//go:embed scripts/redisson/renew.lua
	redissonRenew string
	//go:embed scripts/redisson/release.lua
	redissonRelease string
	//go:embed scripts/redisson/force.lua
	redissonForce string
	//go:embed scripts/redisson/drop.lua
	redissonDrop string
	//go:embed scripts/redisson/probe.lua
	redissonProbe string
	//go:embed scripts/redisson/inspect.lua
	redissonInspect string
)

// Redisson is the format of Redisson's RLock, on one node.
var Redisson = &Format{
	Acquire: script(decimalLua, redissonNames, seedLua, redissonBlock, countLua, queueLua, wakeLua, prolongLua, redissonAcquire),
	Adopt:   script(decimalLua, redissonNames, seedLua, redissonBlock, countLua, prolongLua, redissonAdopt),
	Commit:  script(redissonNames, redissonCommit),
	Renew:   script(decimalLua, redissonNames, countLua, prolongLua, redissonRenew),
	Release: script(decimalLua, redissonNames, redissonFree, seedLua, redissonBlock, countLua, queueLua, wakeLua, redissonPass, redissonRelease),
	Force:   script(decimalLua, redissonNames, redissonFree, seedLua, redissonBlock, countLua, queueLua, wakeLua, redissonPass, redissonForce),
	Drop:    script(redissonNames, redissonFree, redissonDrop),
	Inspect: script(decimalLua, redissonNames, countLua, redissonInspect),
	Probe:   script(redissonNames, tryLua, redissonProbe),
}
