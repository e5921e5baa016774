package redlock

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// always has a byte for whoever waits.
type always struct{ net.Conn }

func (always) Read([]byte) (int, error) { return 1, nil }

func TestASpinInVainIsSeldomRepeated(t *testing.T) {
	t.Parallel()
	far, took := true, 0
	s := &spinner{Conn: always{}, take: func([]byte) int {
		took++
		if far {
			return 0
		}
		return 1
	}}
	read := func(times int) (spins int) {
		for range times {
			before := took
			if n, err := s.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if took > before {
				spins++
			}
		}
		return spins
	}
	if n := read(100); n != 0 {
		t.Errorf("%d spins where none is wanted", n)
	}
	s.spin(true)
	if n := read(20 * sleepMost); n < 20 || n > 30 { // 1, 2, 4 … answers apart
		t.Errorf("%d spins in vain for %d answers", n, 20*sleepMost)
	}
	far = false
	read(sleepMost + 1)
	if n := read(100); n != 100 {
		t.Errorf("%d spins for 100 answers once they come in time", n)
	}
}

// What is taken while spinning and what is read asleep are one stream, and its end,
// its errors and its deadlines are those of the connection.
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
				time.Sleep(2 * spinMost) // some of it is not there in time
			}
		}
	}()
	got, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("read %d bytes, %v; want the %d that were sent", len(got), err, len(sent))
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
