package redis

import "github.com/holdfast-go/holdfast/redis/internal/format"

// Format selects the keys and scripts of the locks on a node.
type Format string

const (
	// FormatPlain is the format of Holdfast. With BareKeys, many other libraries use the same.
	FormatPlain Format = ""
	// FormatRedisson is the format of Redisson's RLock, RFencedLock and RFairLock: threads in
	// Java and clients in this format exclude, wake and see one another, and their tokens
	// are in one order. It is for one server. Prefix is then what Redisson's NameMapper
	// puts before the names, by default nothing. A holder in Java may have the lock
	// several times, and has it until it has freed it as often.
	//
	// A lock that was freed by RLock.forceUnlock, or that the server has forgotten, is
	// lost, as a thread without a token may have had it since. Waiters are in order
	// among clients of this format; between them and Java chance decides, and
	// RFairLock's order is kept among its own threads. RReadWriteLock must not have the
	// same names: it gets in beside any other lock of Redisson. Counters of tokens never
	// expire: Redisson's begin at 1 again where they are missing.
	FormatRedisson Format = "redisson"
)

var formats = map[Format]*format.Format{FormatPlain: format.Plain, FormatRedisson: format.Redisson}
