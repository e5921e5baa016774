package quorum

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Place is the place of a waiter in the queue of one lock on one node.
type Place struct {
	Owner string // id of the waiter
	Stamp int64  // when the client began to ask, by its clock, µs since 1970
	Until int64  // when the place expires unless the client asks again, by the node's clock, ms since 1970
}

// Queue holds the places of one lock on one node, in the order of a Redis sorted set: by stamp, and equal
// stamps by the bytes of their ids. The first waiter with a listening client gets the lock when it is released
// (Lock.Release and handOverOrFree in node.go), or when another client asks for a free lock (Lock.Acquire).
//
// A Queue is an immutable value packed into a string, so that the state that contains it can be compared and
// copied. The zero value is empty.
type Queue string

// placeHeaderLen is the length of a packed place without its id: 8 bytes of stamp, 8 of until, 2 of the id's
// length.
const placeHeaderLen = 18

// splitFirst splits q into its first place and the rest. q is not empty.
func (q Queue) splitFirst() (p Place, rest Queue) {
	head := []byte(q[:placeHeaderLen])
	end := placeHeaderLen + int(binary.BigEndian.Uint16(head[16:]))
	p.Stamp = int64(binary.BigEndian.Uint64(head))
	p.Until = int64(binary.BigEndian.Uint64(head[8:]))
	p.Owner = string(q[placeHeaderLen:end])
	return p, q[end:]
}

// append returns q with p at the end.
func (q Queue) append(p Place) Queue {
	b := make([]byte, 0, len(q)+placeHeaderLen+len(p.Owner))
	b = append(b, q...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.Stamp))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Until))
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.Owner)))
	return Queue(append(b, p.Owner...))
}

// Len returns the number of places in q.
func (q Queue) Len() int {
	n := 0
	for range q.Places {
		n++
	}
	return n
}

// Head returns the first id; ok is false when there is none.
func (q Queue) Head() (owner string, ok bool) {
	if q == "" {
		return "", false
	}
	p, _ := q.splitFirst()
	return p.Owner, true
}

// Places calls yield for each place, in order.
func (q Queue) Places(yield func(p Place) bool) {
	for q != "" {
		var p Place
		if p, q = q.splitFirst(); !yield(p) {
			return
		}
	}
}

// With returns q with p, which replaces an earlier place of its owner.
func (q Queue) With(p Place) Queue {
	q = q.Without(p.Owner)
	for left := q; left != ""; {
		old, rest := left.splitFirst()
		if cmp.Or(cmp.Compare(old.Stamp, p.Stamp), cmp.Compare(old.Owner, p.Owner)) > 0 {
			return q[:len(q)-len(left)].append(p) + left
		}
		left = rest
	}
	return q.append(p)
}

// Without returns q without owner.
func (q Queue) Without(owner string) Queue {
	for left := q; left != ""; {
		p, rest := left.splitFirst()
		if p.Owner == owner {
			return q[:len(q)-len(left)] + rest
		}
		left = rest
	}
	return q
}

// withoutExpired returns q without the places that have expired by now, in ms.
func (q Queue) withoutExpired(now int64) Queue {
	lapsed := false
	for p := range q.Places {
		if lapsed = now > p.Until; lapsed {
			break
		}
	}
	if !lapsed {
		return q
	}
	var kept Queue
	for p := range q.Places {
		if now <= p.Until {
			kept = kept.append(p)
		}
	}
	return kept
}

// candidates yields the ids to which the lock may be handed: the first of the queue, as many as one request
// tries, and then the ids whose clients asked last. A living waiter asks again and again, so if all of the
// first are dead, the last to ask are alive.
func (q Queue) candidates(yield func(owner string) bool) {
	n := 0
	for p := range q.Places {
		if n++; n > maxCandidates {
			break
		}
		if !yield(p.Owner) {
			return
		}
	}
	if n < maxCandidates {
		return
	}
	all := slices.Collect(q.Places)
	slices.SortFunc(all, func(a, b Place) int {
		return cmp.Or(cmp.Compare(b.Until, a.Until), cmp.Compare(a.Owner, b.Owner))
	})
	for _, p := range all[:min(maxRecent, len(all))] {
		if !yield(p.Owner) {
			return
		}
	}
}

// Notes lists the owners that lost one lock on one node by Force or Adopt, each with the time in ms at which
// the note expires. Like a Queue it is an immutable value, sorted by owner.
type Notes struct{ q Queue }

// With returns n with a note about owner that lasts until the given time, or longer if an earlier note does.
func (n Notes) With(owner string, until int64) Notes {
	if known, ok := n.Until(owner); ok {
		until = max(until, known)
	}
	return Notes{n.q.With(Place{Owner: owner, Until: until})}
}

// Until returns when the note about owner expires. ok is false if there is none.
func (n Notes) Until(owner string) (until int64, ok bool) {
	for p := range n.q.Places {
		if p.Owner == owner {
			return p.Until, true
		}
	}
	return 0, false
}

// Owners calls yield for each note.
func (n Notes) Owners(yield func(owner string, until int64) bool) {
	for p := range n.q.Places {
		if !yield(p.Owner, p.Until) {
			return
		}
	}
}

// withoutExpired returns n without the notes that have expired by now, in ms.
func (n Notes) withoutExpired(now int64) Notes { return Notes{n.q.withoutExpired(now)} }
