package redis

import "github.com/holdfast-go/holdfast/redis/internal/format"

// Format selects the keys and scripts of the locks on a node.
type Format string

const (
	// FormatPlain is Holdfast's own format. With BareKeys, many other libraries use the same keys.
	FormatPlain Format = ""
	// FormatRedisson is the format of Redisson's RLock, RFencedLock and RFairLock: Java threads and clients in
	// this format exclude, wake and see one another, and their tokens rise in one order. It supports one
	// server only. Prefix is then the text that Redisson's NameMapper puts before the names, by default none.
	// A Java holder may acquire the lock several times, and holds it until it has released it as often.
	//
	// A lock is lost if RLock.forceUnlock frees it or the server forgets it, because a thread without a token
	// may have held it since. Waiters of this format get the lock in order. Between them and Java there is no
	// order, and RFairLock keeps its order among its own threads. RReadWriteLock must not use the same names,
	// because it does not exclude Redisson's other locks. Counters of tokens never expire: Redisson's start at
	// 1 again if they are missing.
	FormatRedisson Format = "redisson"
)

var formats = map[Format]*format.Format{FormatPlain: format.Plain, FormatRedisson: format.Redisson}
