// Package faultproxy is a TCP proxy in front of one redis-server that makes the network fail at a chosen point: this reply
// is lost after its command was executed, that request arrives a second late, after its connection has gone.
//
// It understands RESP3 over plain TCP, and RESP2 but for subscriptions. It cannot look into TLS, and it loses count of
// replies after CLIENT REPLY OFF or SKIP, after MONITOR, and with subscriptions to patterns and shards or the end of all at
// once, none of which a lock needs.
// Delays are as exact as Go's timers, about a millisecond.
//
// The way of a byte, four goroutines for each connection:
//
//	client --readClient--> up   --sendUp--> server     up:   requests; stopped by Blackhole(up), HoldRequest, Strand and Forget
//	client <--sendDown-- down <--readServer-- server   down: values and the end, each with its time; stopped by Blackhole(down) and Forget
//
// The readers never wait for the senders, so what is stopped stays in the proxy's memory and an end of either side is
// noticed at once; it is passed on behind everything that travels before it. A client that closes does not take back what it
// has sent.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	dialTimeout = 5 * time.Second
	acceptPause = 10 * time.Millisecond // when this process has no file descriptors left
)

// Proxy is safe for concurrent use.
type Proxy struct {
	listener net.Listener    // nil in a Mesh
	ctx      context.Context // ends with Close; for dialing
	cancel   context.CancelFunc
	running  sync.WaitGroup // acceptClients and one per connection

	mu       sync.Mutex // guards what follows and the state of every conn; never held across I/O
	upstream string
	opaque   bool
	stats    Stats
	delay    time.Duration
	refuse   bool
	stopUp   bool
	stopDown bool
	closed   bool
	cuts     int // calls of Cut, for connections that are just being made
	holds    []*Hold
	losses   []*loss
	rewrites []*rewrite
	conns    map[*conn]struct{}
}

// Stats count since New.
type Stats struct {
	Requests int // forwarded to the server
	Replies  int // received from the server, lost ones included; each confirmation of a SUBSCRIBE counts
}

// New starts a proxy on a free port of 127.0.0.1. The server at upstream need not be up: each connection of a client makes
// its own to the server, and is closed if that fails.
func New(upstream string) (*Proxy, error) { return startProxy(&Proxy{upstream: upstream}) }

// NewOpaque is New for a server that speaks another protocol. The proxy does not look into what it passes on, so that
// there are no requests or replies to hold, lose, rewrite or count. An upstream that begins with a slash is a Unix socket.
func NewOpaque(upstream string) (*Proxy, error) {
	return startProxy(&Proxy{upstream: upstream, opaque: true})
}

func startProxy(p *Proxy) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy for %s: %w", p.upstream, err)
	}
	p.listener = listener
	prepareProxy(p).running.Go(p.acceptClients)
	return p, nil
}

func prepareProxy(p *Proxy) *Proxy {
	p.conns = map[*conn]struct{}{}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close ends every connection, loses what is stopped in the proxy and waits until all its goroutines have ended.
func (p *Proxy) Close() error {
	p.cancel()
	var err error
	if p.listener != nil {
		err = p.listener.Close()
	}
	p.changeState(func() {
		p.closed = true
		for c := range p.conns {
			c.client.Close()
			c.server.Close()
		}
	})
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Stats returns the counters as they stand.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// SetDelay makes everything that arrives from the server from now on reach the client d later. Order is kept, and so is
// pipelining: replies that arrive together travel together.
func (p *Proxy) SetDelay(d time.Duration) { p.changeState(func() { p.delay = d }) }

// Refuse makes the proxy reset new connections as soon as they are made. Those that exist go on.
func (p *Proxy) Refuse(refuse bool) { p.changeState(func() { p.refuse = refuse }) }

// Redirect makes new connections go to another server, as when an address moves. Those that exist go on; Cut ends them.
func (p *Proxy) Redirect(upstream string) { p.changeState(func() { p.upstream = upstream }) }

// Blackhole stops the bytes to the server (up), to the client (down) or both, and the news that the other side has
// closed with them. Connections stay open and new ones can be made. Blackhole(false, false) delivers what was stopped, late; Cut
// before it drops that.
func (p *Proxy) Blackhole(up, down bool) {
	p.changeState(func() { p.stopUp, p.stopDown = up, down })
}

// Strand stops the bytes to the server on the connections that exist, as when their packets go a long way round; new
// connections pass. What was stopped reaches the server, late, when deliver is called, also where Cut or the client has ended
// the connection meanwhile, but not where the server has. A second deliver does nothing.
func (p *Proxy) Strand() (deliver func()) {
	var stranded []*conn
	p.changeState(func() {
		for c := range p.conns {
			if !c.stranded {
				c.stranded, stranded = true, append(stranded, c)
			}
		}
	})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range stranded {
			c.stranded = false
			c.upWake.Signal()
		}
		stranded = nil
	}
}

// Forget has the connections that exist carry nothing more in either direction, as when a firewall forgets them: they stay
// open, neither side learns that the other has closed, and new connections pass. What they were to carry is lost. end closes
// the forgotten connections that are left; a second end does nothing.
func (p *Proxy) Forget() (end func()) {
	var forgotten []*conn
	p.changeState(func() {
		for c := range p.conns {
			if !c.forgotten {
				c.forgotten, forgotten = true, append(forgotten, c)
			}
		}
	})
	return func() {
		p.changeState(func() {
			for _, c := range forgotten {
				c.forgotten = false
				c.cut()
			}
			forgotten = nil
		})
	}
}

// Cut closes every connection; clients can make new ones at once. Whatever has not reached the other side is lost, but for
// what HoldRequest and Strand keep: that is taken to be on its way and is delivered when released. The server learns of the end of its
// connection behind that, and not while Blackhole stops the way up.
func (p *Proxy) Cut() {
	p.changeState(func() {
		p.cuts++
		for c := range p.conns {
			c.cut()
		}
	})
}

// changeState lets f change the state and then lets every connection look at it.
func (p *Proxy) changeState(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	for c := range p.conns {
		c.upWake.Signal()
		c.downWake.Signal()
	}
}

func (p *Proxy) acceptClients() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		upstream, cuts, ok := p.admitClient()
		if !ok {
			resetConn(client)
			continue
		}
		p.running.Go(func() {
			if server, err := p.dialUpstream(upstream); err == nil {
				p.serveClient(client, server, cuts)
			} else {
				resetConn(client)
			}
		})
	}
}

func (p *Proxy) admitClient() (upstream string, cuts int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstream, p.cuts, !p.refuse
}

func (p *Proxy) dialUpstream(upstream string) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(upstream, "/") {
		network = "unix"
	}
	return (&net.Dialer{Timeout: pace.Scale(dialTimeout)}).DialContext(p.ctx, network, upstream)
}

func (p *Proxy) serveClient(client, server net.Conn, cuts int) {
	c := newConn(p, client, server.(stream))
	if !p.registerConn(c, cuts) {
		client.Close()
		server.Close()
		return
	}
	c.run()
	p.changeState(c.settle)
}

// registerConn rejects a connection that Close or Cut ended while the server was being dialed.
func (p *Proxy) registerConn(c *conn, cuts int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.cuts != cuts {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

// resetConn closes a connection such that the other side sees an error rather than an orderly end.
func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
