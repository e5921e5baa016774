package faultproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	greetTimeout = 5 * time.Second
	// Replies of SOCKS 5.
	connected, refused = 0, 5
)

// Mesh is a network between servers that talk to each other. One of them can be cut off from the others while
// clients still reach all. Each server dials the others through its own SOCKS 5 proxy, which identifies the
// dialing server. Mesh is safe for concurrent use.
type Mesh struct {
	fronts  []net.Listener
	links   []map[string]*Proxy // by dialing server and dialed port
	owners  map[string]int      // server of each port
	running sync.WaitGroup      // the accept loop of each front, and a goroutine per connection
	closing chan struct{}
}

// NewMesh starts the network of servers with these addresses on 127.0.0.1, one or more for each server.
func NewMesh(servers [][]string) (*Mesh, error) {
	m := &Mesh{owners: map[string]int{}, closing: make(chan struct{})}
	for i, addrs := range servers {
		for _, addr := range addrs {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			m.owners[port] = i
		}
	}
	for range servers {
		front, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		ways := map[string]*Proxy{}
		for port := range m.owners {
			ways[port] = prepareProxy(&Proxy{upstream: net.JoinHostPort("127.0.0.1", port), opaque: true})
		}
		m.fronts, m.links = append(m.fronts, front), append(m.links, ways)
		m.running.Go(func() { m.acceptClients(front, ways) })
	}
	return m, nil
}

// Front returns the address of the SOCKS 5 proxy through which the server with that number has to dial the
// others. The proxy uses only the port, and dials 127.0.0.1 whatever the host is.
func (m *Mesh) Front(server int) string { return m.fronts[server].Addr().String() }

// Isolate stops the bytes from the other servers to a server (in), from the server to them (out), or both, and
// also new connections. Isolate(server, false, false) delivers the stopped bytes.
func (m *Mesh) Isolate(server int, in, out bool) {
	for from, ways := range m.links {
		for port, p := range ways {
			switch to := m.owners[port]; {
			case from == to:
			case from == server:
				p.Blackhole(out, in)
			case to == server:
				p.Blackhole(in, out)
			}
		}
	}
}

// Close ends every connection and waits until all goroutines have ended.
func (m *Mesh) Close() (errs error) {
	select {
	case <-m.closing:
	default:
		close(m.closing)
	}
	for _, front := range m.fronts {
		if err := front.Close(); !errors.Is(err, net.ErrClosed) {
			errs = errors.Join(errs, err)
		}
	}
	m.running.Wait()
	for _, ways := range m.links {
		for _, p := range ways {
			errs = errors.Join(errs, p.Close())
		}
	}
	return errs
}

func (m *Mesh) acceptClients(front net.Listener, ways map[string]*Proxy) {
	for {
		conn, err := front.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		m.running.Go(func() {
			port, err := readGreeting(conn)
			p := ways[port]
			if err != nil || p == nil || !m.awaitPassage(p) {
				resetConn(conn)
				return
			}
			upstream, cuts, _ := p.admitClient()
			server, err := p.dialUpstream(upstream)
			if err != nil {
				conn.Write([]byte{5, refused, 0, 1, 0, 0, 0, 0, 0, 0})
				conn.Close()
				return
			}
			conn.Write([]byte{5, connected, 0, 1, 0, 0, 0, 0, 0, 0})
			p.running.Go(func() { p.serveClient(conn, server, cuts) })
		})
	}
}

// awaitPassage blocks until bytes pass both ways, because a new connection needs both. It returns false when
// the mesh is closed.
func (m *Mesh) awaitPassage(p *Proxy) bool {
	for !p.passesBothWays() {
		select {
		case <-m.closing:
			return false
		case <-time.After(acceptPause):
		}
	}
	return true
}

func (p *Proxy) passesBothWays() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stopUp && !p.stopDown
}

// readGreeting reads the handshake of SOCKS 5 (RFC 1928), and returns the port that the client asks for.
func readGreeting(conn net.Conn) (port string, err error) {
	conn.SetDeadline(time.Now().Add(pace.Scale(greetTimeout)))
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:2]); err != nil { // version, number of login methods
		return "", err
	}
	if _, err := io.CopyN(io.Discard, conn, int64(head[1])); err != nil {
		return "", err
	}
	conn.Write([]byte{5, 0})                              // no login
	if _, err := io.ReadFull(conn, head[:]); err != nil { // version, command, 0, kind of the address
		return "", err
	}
	length := int64(net.IPv4len)
	switch head[3] {
	case 3: // a host name
		if _, err := io.ReadFull(conn, head[:1]); err != nil {
			return "", err
		}
		length = int64(head[0])
	case 4:
		length = net.IPv6len
	}
	if _, err := io.CopyN(io.Discard, conn, length); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(conn, head[:2]); err != nil {
		return "", err
	}
	conn.SetDeadline(time.Time{})
	return fmt.Sprint(int(head[0])<<8 | int(head[1])), nil
}
