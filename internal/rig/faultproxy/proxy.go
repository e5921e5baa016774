// Package faultproxy is a TCP proxy in front of one redis-server that makes the network fail at a chosen
// point. For example, it loses a reply after its command was executed, or delivers a request a second late,
// after its connection has ended.
//
// It understands RESP3 over plain TCP, and RESP2 except for subscriptions. It cannot look into TLS. It loses
// count of replies after CLIENT REPLY OFF or SKIP, after MONITOR, with subscriptions to patterns and shards,
// and when all subscriptions end at once; locks need none of these. Delays are as exact as Go's timers, about
// a millisecond.
//
// Each connection has four goroutines, and a byte takes this way:
//
//	client --readClient--> up   --sendUp--> server     up:   requests; stopped by Blackhole(up), HoldRequest, Strand and Forget
//	client <--sendDown-- down <--readServer-- server   down: values and the end, each with its time; stopped by Blackhole(down) and Forget
//
// The readers never wait for the senders, so stopped data stay in the proxy's memory, and the end of either
// side is noticed at once. The end is passed on after all data before it. A client that closes its connection
// does not cancel what it has sent.
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
	acceptPause = 10 * time.Millisecond // pause when this process has no file descriptors left
)

// Proxy is a proxy in front of one server. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener    // nil in a Mesh
	ctx      context.Context // ends with Close; for dialing
	cancel   context.CancelFunc
	running  sync.WaitGroup // acceptClients and one goroutine per connection

	mu       sync.Mutex // guards the fields below and the state of every conn; never held across I/O
	upstream string
	opaque   bool
	stats    Stats
	delay    time.Duration
	refuse   bool
	stopUp   bool
	stopDown bool
	closed   bool
	cuts     int // number of calls of Cut, for connections that are just being opened
	holds    []*Hold
	losses   []*loss
	rewrites []*rewrite
	conns    map[*conn]struct{}
}

// Stats counts since New.
type Stats struct {
	Requests int // forwarded to the server
	Replies  int // received from the server, including lost ones; each confirmation of a SUBSCRIBE counts
}

// New starts a proxy on a free port of 127.0.0.1. The server at upstream may be down: each connection of a
// client opens a connection to the server, and is closed if that fails.
func New(upstream string) (*Proxy, error) { return startProxy(&Proxy{upstream: upstream}) }

// NewOpaque is New for a server with another protocol. The proxy does not look into what it passes on, so it
// cannot hold, lose, rewrite or count requests and replies. An upstream that begins with a slash is a Unix
// socket.
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

// Close ends every connection, drops what is stopped in the proxy, and waits until all its goroutines have
// ended.
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

// Stats returns the present counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// SetDelay makes everything that arrives from the server from now on reach the client d later. It keeps the
// order and pipelining: replies that arrive together travel together.
func (p *Proxy) SetDelay(d time.Duration) { p.changeState(func() { p.delay = d }) }

// Refuse makes the proxy reset new connections as soon as they are opened. Existing connections continue.
func (p *Proxy) Refuse(refuse bool) { p.changeState(func() { p.refuse = refuse }) }

// Redirect makes new connections go to another server, as when an address moves. Existing connections
// continue; Cut ends them.
func (p *Proxy) Redirect(upstream string) { p.changeState(func() { p.upstream = upstream }) }

// Blackhole stops the bytes to the server (up), to the client (down) or both, and with them the news that the
// other side has closed. Connections stay open and new ones can be opened. Blackhole(false, false) delivers
// what was stopped; a Cut before it drops that.
func (p *Proxy) Blackhole(up, down bool) {
	p.changeState(func() { p.stopUp, p.stopDown = up, down })
}

// Strand stops the bytes to the server on the existing connections, like packets on a slow route; new
// connections work. When deliver is called, the stopped bytes reach the server, even if Cut or the client has
// ended the connection meanwhile, but not if the server has. A second deliver does nothing.
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

// Forget makes the existing connections carry nothing more in either direction, like a firewall that forgets
// them: they stay open, and neither side learns that the other has closed. New connections work. All later
// bytes on the forgotten connections are lost. end closes those that are still open; a second end does nothing.
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
				c.cutClient()
			}
			forgotten = nil
		})
	}
}

// Cut closes every connection; clients can open new ones at once. Data that have not reached the other side
// are lost, except those that HoldRequest and Strand keep: they count as sent, and are delivered when
// released. The server learns of the end of its connection after them, and not while Blackhole stops the way
// up.
func (p *Proxy) Cut() {
	p.changeState(func() {
		p.cuts++
		for c := range p.conns {
			c.cutClient()
		}
	})
}

// changeState calls f to change the state, and wakes every connection.
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
	p.changeState(c.settleLosses)
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

// resetConn closes a connection so that the other side sees an error, not an orderly end.
func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
