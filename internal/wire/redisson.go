package wire

import (
	_ "embed"
	"strings"
)

// Redisson's prefixes for the names of keys and channels that belong to a lock. The name of the lock follows.
const (
	redissonToken    = "redisson_lock_token"    // counter of an RFencedLock
	RedissonChannels = "redisson_lock__channel" // channel for releases
)

// RedissonFence returns the key of the counter that Redisson's fenced locks keep for the lock on key.
func RedissonFence(key string) string { return redissonName(redissonToken, key) }

// RedissonChannel returns the channel on which Redisson publishes that the lock on key is free. A thread that
// waits for an RFairLock listens to this channel's name with a colon and the owner id of the thread.
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
	Acquire: newScript(decimalLua, redissonNames, seedLua, redissonBlock, countLua, queueLua, wakeLua, prolongLua, redissonAcquire),
	Adopt:   newScript(decimalLua, redissonNames, seedLua, redissonBlock, countLua, prolongLua, redissonAdopt),
	Commit:  newScript(redissonNames, redissonCommit),
	Renew:   newScript(decimalLua, redissonNames, countLua, prolongLua, redissonRenew),
	Release: newScript(decimalLua, redissonNames, redissonFree, seedLua, redissonBlock, countLua, queueLua, wakeLua, redissonPass, redissonRelease),
	Force:   newScript(decimalLua, redissonNames, redissonFree, seedLua, redissonBlock, countLua, queueLua, wakeLua, redissonPass, redissonForce),
	Drop:    newScript(redissonNames, redissonFree, redissonDrop),
	Inspect: newScript(decimalLua, redissonNames, countLua, redissonInspect),
	Probe:   newScript(redissonNames, tryLua, redissonProbe),
}
