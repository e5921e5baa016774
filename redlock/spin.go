package redlock

import (
	"net"
	"time"
)

const (
	// spinMost is how long a caller asks for an answer again and again before it
	// sleeps: about what it costs to be put to sleep and woken, so that a spin in vain
	// no more than doubles the work. (A. Karlin et al., Empirical Studies of Competitive
	// Spinning, SOSP 1991.)
	spinMost = 50 * time.Microsecond
	// spinsMost is how many answers are awaited so before one is awaited asleep, to
	// let others have the processor and to see how long that takes.
	spinsMost = 3
	// farMost is how many answers are awaited asleep, at the most, before the next
	// spin, where they do not come in time; busyMost, where they come no sooner.
	farMost  = 1 << 10
	busyMost = 1 << 6
)

// spinner is a connection to a node that may be so near that it answers before
// whoever waits is asleep and awake again: to be woken on an idle processor takes
// longer than the node's work. It spins as long as that pays. It does not where the
// node is farther away, nor where the processors are busy: these wake at once, and
// others want them.
type spinner struct {
	net.Conn
	take func([]byte) (n int, nothing bool) // reads what there is, without waiting; nil: it cannot

	// Whoever is reading owns these.
	on     bool
	spins  int           // since an answer was awaited asleep
	spent  time.Duration // on these
	asleep time.Duration // how long the last answer took that was awaited asleep
	sleeps int           // answers to be awaited asleep before the next spin
	vain   int           // how many those were after the last spins that did not pay, halved by each that did
}

func newSpinner(conn net.Conn) *spinner { return &spinner{Conn: conn, take: taker(conn)} }

// spin says whether what is read next is worth a spin. A nil spinner never spins.
func (s *spinner) spin(on bool) {
	if s != nil {
		s.on = on
	}
}

// Read implements net.Conn.
func (s *spinner) Read(b []byte) (int, error) {
	if !s.on || s.take == nil {
		return s.Conn.Read(b)
	}
	begin := time.Now()
	if s.sleeps > 0 {
		s.sleeps--
		n, err := s.Conn.Read(b)
		s.asleep = time.Since(begin)
		return n, err
	}
	n, nothing := s.take(b)
	for nothing && time.Since(begin) < spinMost {
		n, nothing = s.take(b)
	}
	s.spins++
	s.spent += time.Since(begin)
	switch {
	case n == 0:
		s.rest(min(2*s.vain+1, farMost))
		return s.Conn.Read(b)
	case s.spins < spinsMost:
	case s.spent < spinsMost*s.asleep*3/4:
		s.rest(s.vain / 2)
		s.sleeps = 1
	default:
		s.rest(min(2*s.vain+1, busyMost))
	}
	return n, nil
}

// rest has the next answers be awaited asleep.
func (s *spinner) rest(vain int) {
	s.vain, s.sleeps = vain, vain
	s.spins, s.spent = 0, 0
}
