package redlock

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// answers is a connection over which each read awaits one answer of one byte.
type answers struct {
	net.Conn
	node  time.Duration // that it takes the node
	wake  time.Duration // that it takes to wake whoever sleeps
	begin time.Time     // of the wait; zero: the next has not begun
	spins int           // answers that were spun for
}

func (a *answers) take([]byte) (n int, nothing bool) {
	if a.begin.IsZero() {
		a.begin = time.Now()
		a.spins++
	}
	if time.Sleep(time.Microsecond); time.Since(a.begin) < a.node { // of virtual time
		return 0, true
	}
	a.begin = time.Time{}
	return 1, false
}

func (a *answers) Read([]byte) (int, error) {
	if a.begin.IsZero() {
		a.begin = time.Now()
	}
	time.Sleep(a.node - time.Since(a.begin) + a.wake) // of virtual time
	a.begin = time.Time{}
	return 1, nil
}

// await reads n answers and returns how many s spun for, and how long all took.
func (a *answers) await(t *testing.T, s *spinner, n int) (spins int, took time.Duration) {
	t.Helper()
	before, begin := a.spins, time.Now()
	for range n {
		if n, err := s.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	return a.spins - before, time.Since(begin)
}

func TestASpinnerSpinsOnlyWhereThatPays(t *testing.T) {
	t.Parallel()
	const n = 10 * farMost
	near := answers{node: 20 * time.Microsecond, wake: 30 * time.Microsecond}
	for name, row := range map[string]struct {
		answers
		least, most int           // answers that are spun for
		lost        time.Duration // at the most, beside sleeping for all
	}{
		"the node is near":        {near, n * 74 / 100, n * 75 / 100, -n * 22 * time.Microsecond},
		"it is far away":          {answers{node: time.Millisecond, wake: near.wake}, 10, 30, 0},
		"the processors are busy": {answers{node: near.node, wake: time.Microsecond}, 10, n * 5 / 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &row.answers
				s := &spinner{Conn: a, take: a.take}
				if spins, _ := a.await(t, s, 100); spins != 0 {
					t.Errorf("%d spins for 100 answers that are not worth it", spins)
				}
				s.spin(true)
				spins, took := a.await(t, s, n)
				if spins < row.least || spins > row.most {
					t.Errorf("%d spins for %d answers, want %d to %d", spins, n, row.least, row.most)
				}
				if lost := took - n*(a.node+a.wake); lost > row.lost {
					t.Errorf("lost %v, want %v at the most", lost, row.lost)
				}
				a.node, a.wake = near.node, near.wake
				a.await(t, s, 2*farMost)
				if spins, _ := a.await(t, s, 100); spins < 70 {
					t.Errorf("%d spins for 100 answers when the node is near again", spins)
				}
			})
		})
	}
}

// What is taken while spinning and what is read asleep are one stream, and its end
// and its deadlines are those of the connection.
func TestASpinnerReadsWhatItsConnectionReads(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	s := newSpinner(ours)
	s.spin(true)
	ours.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Read after the deadline = %v", err)
	}
	ours.SetReadDeadline(time.Time{})
	taken := 0
	if take := s.take; take != nil {
		s.take = func(b []byte) (int, bool) {
			n, nothing := take(b)
			taken += n
			return n, nothing
		}
	}
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	go func() {
		defer theirs.Close()
		for rest := sent; len(rest) > 0; {
			n := min(1+rand.IntN(2000), len(rest))
			theirs.Write(rest[:n])
			rest = rest[n:]
			if rand.IntN(10) == 0 {
				time.Sleep(2 * spinMost) // so that some of it is not there in time
			}
		}
	}()
	got, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("read %d bytes, %v; want the %d that were sent", len(got), err, len(sent))
	}
	if runtime.GOOS == "linux" && taken == 0 {
		t.Error("nothing of it was taken while spinning")
	}
}

// pair returns the ends of a TCP connection.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	return ours, theirs
}
