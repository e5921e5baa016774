package redlock

import (
	"net"
	"runtime"
	"time"
)

const (
	// spinMost is how long a caller asks for an answer again and again before it
	// sleeps: about what it costs to be put to sleep and woken, so that a spin in vain
	// no more than doubles the work. (A. Karlin et al., Empirical Studies of Competitive
	// Spinning, SOSP 1991.)
	spinMost = 50 * time.Microsecond
	// sleepMost is how many answers are awaited asleep, at the most, before the next
	// spin, where spins are in vain.
	sleepMost = 1 << 10
)

// spinner is a connection to a node that may be so near that it answers before
// whoever waits is asleep and awake again. Not to sleep then takes half the time, and
// less work: the work of waking somebody on an idle processor is the greater.
type spinner struct {
	net.Conn
	take func([]byte) int // reads what has come, without waiting; nil: it cannot

	// Whoever is reading owns these.
	on     bool
	sleeps int // to go before the next spin
	vain   int // how many those were after the last spin; 0: it was not in vain
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
	switch {
	case !s.on || s.take == nil:
	case s.sleeps > 0:
		s.sleeps--
	default:
		for begin := time.Now(); time.Since(begin) < spinMost; {
			if n := s.take(b); n > 0 {
				s.vain = 0
				return n, nil
			}
			yield() // the node may want this processor
			runtime.Gosched()
		}
		s.vain = min(2*s.vain+1, sleepMost)
		s.sleeps = s.vain
	}
	return s.Conn.Read(b)
}
