package zookeeper_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// The requests that tests tell apart.
const (
	opDelete   = 2
	opGetData  = 4
	opSync     = 9
	opPing     = 11
	opChildren = 12
	opMulti    = 14
	opCreate   = 15
	opClose    = -11
	greeting   = 0 // of a session, which has no kind
	probe      = 1 // a connection that asks who leads
)

// proxy stands between one client and one member and makes the network fail. It passes every
// packet on as it is, but knows its kind.
type proxy struct {
	addr   string
	member string
	listen net.Listener
	all    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	change *sync.Cond
	closed bool
	hole   bool          // nothing passes, either way
	refuse bool          // connections are cut at once
	lose   int           // so many replies are lost, and their connections cut
	mute   bool          // what loses a reply hangs
	only   int           // losses are of this kind alone; 0: of all
	slow   time.Duration // each reply comes so much later
	stop   int           // requests of this kind wait until it is 0, also if their client has gone
	caught chan struct{} // receives when one waits
	late   chan struct{} // receives when one that had waited was passed on
	conns  map[net.Conn]bool
	counts map[int]int // of requests, by kind
}

func newProxy(t testing.TB, member string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		addr: l.Addr().String(), member: member, listen: l, caught: make(chan struct{}, 100), late: make(chan struct{}, 100),
		conns: make(map[net.Conn]bool), counts: make(map[int]int),
	}
	p.change = sync.NewCond(&p.mu)
	p.all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.set(func() { p.closed, p.refuse, p.stop = true, true, 0 })
		p.all.Wait()
	})
	return p
}

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if p.refuse {
		for c := range p.conns {
			c.Close()
		}
	}
	p.change.Broadcast()
}

// open waits while the proxy is a hole.
func (p *proxy) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.hole && !p.closed {
		p.change.Wait()
	}
}

// lag has a reply come later.
func (p *proxy) lag() {
	p.mu.Lock()
	slow := p.slow
	p.mu.Unlock()
	time.Sleep(slow)
}

func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) leave(c net.Conn) {
	c.Close()
	p.set(func() { delete(p.conns, c) })
}

// tie is one connection of a client through the proxy.
type tie struct {
	down, up net.Conn
	mu       sync.Mutex
	lost     map[uint32]bool // numbers of requests whose replies are lost, and whether they hang
}

func (p *proxy) pass(down net.Conn) {
	if !p.keep(down) {
		return
	}
	defer p.leave(down)
	p.open()
	up, err := net.Dial("tcp", p.member)
	if err != nil || !p.keep(up) {
		return
	}
	defer p.leave(up)
	t := &tie{down: down, up: up, lost: make(map[uint32]bool)}
	var word [4]byte
	if _, err := io.ReadFull(down, word[:]); err != nil {
		return
	}
	p.open()
	if string(word[:]) == "srvr" {
		p.set(func() { p.counts[probe]++ })
		up.Write(word[:])
		text, _ := io.ReadAll(up)
		p.lag()
		p.open()
		down.Write(text)
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		p.replies(t)
		down.Close()
		up.Close()
	})
	p.requests(t, word)
	down.Close()
	up.Close()
	both.Wait()
}

func (p *proxy) requests(t *tie, word [4]byte) {
	first := true
	for {
		body := make([]byte, binary.BigEndian.Uint32(word[:]))
		if _, err := io.ReadFull(t.down, body); err != nil {
			return
		}
		kind := greeting
		if !first {
			kind = int(int32(binary.BigEndian.Uint32(body[4:])))
		}
		late := p.request(t, kind, binary.BigEndian.Uint32(body))
		p.open()
		if _, err := t.up.Write(append(word[:], body...)); err != nil && !late {
			return
		}
		if late {
			p.late <- struct{}{}
		}
		if _, err := io.ReadFull(t.down, word[:]); err != nil {
			return
		}
		first = false
	}
}

// request says what happens to a request. It returns true for one that it has kept waiting.
func (p *proxy) request(t *tie, kind int, number uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[kind]++
	if p.lose > 0 && kind != opPing && kind != greeting && kind != opClose && (p.only == 0 || p.only == kind) {
		p.lose--
		t.mu.Lock()
		t.lost[number] = p.mute
		t.mu.Unlock()
	}
	if kind == greeting || p.stop != kind {
		return false
	}
	p.caught <- struct{}{}
	for p.stop == kind {
		p.change.Wait()
	}
	return true
}

func (p *proxy) replies(t *tie) {
	first := true
	for {
		var word [4]byte
		if _, err := io.ReadFull(t.up, word[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(word[:]))
		if _, err := io.ReadFull(t.up, body); err != nil {
			return
		}
		p.lag()
		p.open()
		t.mu.Lock()
		mute, lost := t.lost[binary.BigEndian.Uint32(body)]
		t.mu.Unlock()
		if lost && !first {
			if mute {
				io.Copy(io.Discard, t.up)
			}
			return
		}
		if _, err := t.down.Write(append(word[:], body...)); err != nil {
			return
		}
		first = false
	}
}
