package quorum

import "encoding/binary"

// Queue is the waiting ids of one lock on one node, first come first: by stamp, which is
// when the client began to ask, by the client's clock, and ids of one stamp by their bytes,
// as a Redis sorted set orders them. The first whose client listens gets the lock when it is
// released (Lock.Release and pass in node.go) or when another asks for it while it is free
// (Lock.Acquire).
//
// A Queue is an immutable value packed into a string, so that the state it is part of can
// be compared and copied; the zero value is empty.
type Queue string

// entry is 8 bytes of stamp, 2 of length, and the id.
const entryHead = 10

// first splits q into its head and the rest. q is not empty.
func (q Queue) first() (stamp int64, owner string, rest Queue) {
	stamp = int64(binary.BigEndian.Uint64([]byte(q[:8])))
	end := entryHead + int(q[8])<<8 + int(q[9])
	return stamp, string(q[entryHead:end]), q[end:]
}

// Len is the number of ids in q.
func (q Queue) Len() int {
	n := 0
	for range q.Entries {
		n++
	}
	return n
}

// Head is the first id; ok is false when there is none.
func (q Queue) Head() (owner string, ok bool) {
	if q == "" {
		return "", false
	}
	_, owner, _ = q.first()
	return owner, true
}

// Entries calls yield for each id, first come first.
func (q Queue) Entries(yield func(stamp int64, owner string) bool) {
	for q != "" {
		stamp, owner, rest := q.first()
		if !yield(stamp, owner) {
			return
		}
		q = rest
	}
}

// With is q with owner at stamp. An owner that waits already keeps its place.
func (q Queue) With(owner string, stamp int64) Queue {
	at := -1
	for left := q; left != ""; {
		s, o, rest := left.first()
		if o == owner {
			return q
		}
		if at < 0 && (s > stamp || s == stamp && o > owner) {
			at = len(q) - len(left)
		}
		left = rest
	}
	if at < 0 {
		at = len(q)
	}
	entry := binary.BigEndian.AppendUint64(make([]byte, 0, entryHead+len(owner)), uint64(stamp))
	entry = binary.BigEndian.AppendUint16(entry, uint16(len(owner)))
	entry = append(entry, owner...)
	return q[:at] + Queue(entry) + q[at:]
}

// Without is q without owner.
func (q Queue) Without(owner string) Queue {
	for left := q; left != ""; {
		_, o, rest := left.first()
		if o == owner {
			return q[:len(q)-len(left)] + rest
		}
		left = rest
	}
	return q
}
