package postgres_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy stands between one client and the server and makes the network fail. It
// knows where a message of PostgreSQL's protocol ends, and that a client of ours
// sends a request when the last one is answered.
type proxy struct {
	listener net.Listener
	upstream string // a socket, or an address of 127.0.0.1
	running  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	change  *sync.Cond
	conns   map[*link]bool
	hole    bool          // nothing passes, either way
	refuse  bool          // new connections are reset
	lose    int           // so many replies are lost, with their connections
	delay   time.Duration // of each answer
	mute    bool          // what loses a reply stays open
	stopped []byte        // requests with this text are stopped
	holding bool          // those that were stopped wait
	caught  chan *link    // receives when one waits
	late    chan struct{} // receives when the server has answered one that had waited
	closed  bool

	requests, notices int // passed on so far
}

// link is one connection.
type link struct {
	client, server net.Conn
	lost           bool          // the reply under way is
	held           bool          // the request under way was stopped
	answered       chan struct{} // closed when that has its answer
}

func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, upstream: upstream, conns: make(map[*link]bool), caught: make(chan *link, 100), late: make(chan struct{}, 100)}
	p.change = sync.NewCond(&p.mu)
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) close() {
	p.listener.Close()
	p.set(func() { p.closed, p.hole, p.holding, p.stopped = true, false, false, nil })
	p.cut()
	p.running.Wait()
}

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.change.Broadcast()
}

// stop stops requests with this text, until pass.
func (p *proxy) stop(text string) { p.set(func() { p.stopped, p.holding = []byte(text), true }) }

// pass passes on what was stopped, and stops no more.
func (p *proxy) pass() { p.set(func() { p.stopped, p.holding = nil, false }) }

// cut ends every connection at once.
func (p *proxy) cut() {
	p.set(func() {
		for l := range p.conns {
			l.end()
		}
	})
}

func (l *link) end() {
	l.client.(*net.TCPConn).SetLinger(0)
	l.client.Close()
	l.server.Close()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	network := "tcp"
	if p.upstream[0] == '/' {
		network = "unix"
	}
	server, err := net.Dial(network, p.upstream)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: server, answered: make(chan struct{})}
	p.mu.Lock()
	refuse := p.refuse || p.closed
	if !refuse {
		p.conns[l] = true
	}
	p.mu.Unlock()
	if refuse {
		l.end()
		return
	}
	p.running.Go(func() { p.down(l) })
	p.up(l)
	p.set(func() { delete(p.conns, l) })
}

// frame reads a message; the first of a client has no kind.
func frame(r io.Reader, kind bool) ([]byte, error) {
	head := make([]byte, 5)
	if !kind {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	msg := append(head, make([]byte, n)...)
	_, err := io.ReadFull(r, msg[len(head):])
	return msg, err
}

func (p *proxy) up(l *link) {
	defer l.server.Close()
	var request []byte
	for first := true; ; first = false {
		msg, err := frame(l.client, !first)
		if err != nil {
			return
		}
		request = append(request, msg...)
		if !first && msg[0] != 'S' && msg[0] != 'Q' && msg[0] != 'X' && msg[0] != 'p' {
			continue // more of the same request
		}
		p.mu.Lock()
		if p.stopped != nil && bytes.Contains(request, p.stopped) {
			l.held = true
			p.caught <- l
			for p.holding {
				p.change.Wait()
			}
		}
		for p.hole {
			p.change.Wait()
		}
		held := l.held
		p.requests++
		if p.lose > 0 && !first && msg[0] != 'X' && msg[0] != 'p' {
			p.lose--
			l.lost = true
		}
		p.mu.Unlock()
		if _, err := l.server.Write(request); err != nil {
			return
		}
		if held { // its client may have gone
			<-l.answered
			p.set(func() { l.held, l.answered = false, make(chan struct{}) })
			p.late <- struct{}{}
		}
		request = nil
	}
}

func (p *proxy) down(l *link) {
	defer l.client.Close()
	for {
		msg, err := frame(l.server, true)
		if err != nil {
			return
		}
		p.mu.Lock()
		for p.hole {
			p.change.Wait()
		}
		lost, mute, delay := l.lost, p.mute, p.delay
		if msg[0] == 'A' {
			p.notices++
		}
		if msg[0] == 'Z' && l.held {
			close(l.answered)
		}
		p.mu.Unlock()
		if msg[0] == 'Z' {
			time.Sleep(delay)
		}
		switch {
		case !lost:
			l.client.Write(msg) // if it has gone, the server's answer still counts
		case msg[0] == 'Z' && !mute:
			return
		}
	}
}

// passed is how many requests and notifications have passed.
func (p *proxy) passed() (requests, notices int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests, p.notices
}
