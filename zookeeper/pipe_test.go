package zookeeper_test

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is one end of an in-memory connection. Unlike net.Pipe, it buffers what the other end has not read yet,
// as a socket does.
type wire struct {
	in, out *inbox
	lost    *atomic.Bool // all data is lost, in both directions
	pause   func()       // called before each read of the buffer; may be nil
}

// inbox holds the bytes that one end of a connection can read.
type inbox struct {
	mu      sync.Mutex // guards the fields below
	data    []byte
	ended   error // error of a read after the data; nil: more may come
	closed  bool  // the reader has closed it
	until   time.Time
	changed chan struct{} // closed at each change
}

// newWires returns the two ends of a connection.
func newWires() (a, b *wire) {
	one, two := &inbox{changed: make(chan struct{})}, &inbox{changed: make(chan struct{})}
	lost := &atomic.Bool{}
	return &wire{in: one, out: two, lost: lost}, &wire{in: two, out: one, lost: lost}
}

// update changes the inbox and wakes its reader.
func (b *inbox) update(set func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	set()
	close(b.changed)
	b.changed = make(chan struct{})
}

// Read checks the deadline before it returns data, as sockets do.
func (w *wire) Read(p []byte) (int, error) {
	for b := w.in; ; {
		if w.pause != nil {
			w.pause()
		}
		b.mu.Lock()
		changed, wait := b.changed, time.Duration(-1)
		if !b.until.IsZero() {
			wait = max(time.Until(b.until), 0)
		}
		switch {
		case b.closed:
			b.mu.Unlock()
			return 0, net.ErrClosed
		case wait == 0:
			b.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(b.data) > 0:
			n := copy(p, b.data)
			b.data = b.data[n:]
			b.mu.Unlock()
			return n, nil
		case b.ended != nil:
			defer b.mu.Unlock()
			return 0, b.ended
		}
		b.mu.Unlock()
		if wait < 0 {
			<-changed
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Write never blocks.
func (w *wire) Write(p []byte) (n int, err error) {
	w.in.mu.Lock()
	closed := w.in.closed
	w.in.mu.Unlock()
	switch {
	case closed:
		return 0, net.ErrClosed
	case w.lost.Load():
		return len(p), nil
	}
	w.out.update(func() {
		if w.out.closed || w.out.ended != nil {
			err = syscall.EPIPE
			return
		}
		w.out.data = append(w.out.data, p...)
		n = len(p)
	})
	return n, err
}

// Close ends the connection. The other end may still read what was written.
func (w *wire) Close() error {
	w.in.update(func() { w.in.closed = true })
	if w.lost.Load() {
		return nil
	}
	w.out.update(func() {
		if w.out.ended == nil {
			w.out.ended = io.EOF
		}
	})
	return nil
}

func (w *wire) SetReadDeadline(t time.Time) error {
	w.in.update(func() { w.in.until = t })
	return nil
}

func (w *wire) SetWriteDeadline(time.Time) error { return nil }

func (w *wire) SetDeadline(t time.Time) error { return w.SetReadDeadline(t) }

func (w *wire) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (w *wire) RemoteAddr() net.Addr { return &net.TCPAddr{} }
