package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// callTime is how long a member may take to answer, where no TTL says more.
	callTime = 2 * time.Second
	// probeEvery is how often the members are asked for their state while nothing happens.
	probeEvery = 10 * time.Second

	shortPause = 20 * time.Millisecond
	longPause  = time.Second
)

// patience is how long one member may take to answer for a session with this TTL: so short
// that the others have their turn before the session is over.
func patience(ttl time.Duration) time.Duration {
	return min(max(ttl/6, 400*time.Millisecond), callTime)
}

// member is one server of the ensemble.
type member struct {
	name  string
	place int // in the order of opening
	tls   *tls.Config
	leads atomic.Bool  // when it was asked last
	trip  atomic.Int64 // how long it takes to answer, in ns, smoothed; 0: not known
}

// dial opens a connection.
func (m *member) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", m.name)
	if err != nil || m.tls == nil {
		return conn, err
	}
	config := m.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(m.name)
	}
	safe := tls.Client(conn, config)
	if err := safe.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, handshake{err}
	}
	return safe, nil
}

// health is what a member says of itself.
type health struct {
	mode string // leader, follower, observer or standalone; empty: it may not say
	zxid int64  // of the last change that it knows

	version string
}

// leads says whether the member decides by itself how long sessions last.
func (h health) leads() bool { return h.mode == "leader" || h.mode == "standalone" }

var (
	errNoQuorum = errors.New("it does not serve clients, as it belongs to no majority")
	errSilent   = errors.New("the command srvr, which says who leads, is not allowed; add srvr to 4lw.commands.whitelist")
)

// probe asks the member by the command srvr, which it takes without a session.
func (m *member) probe(ctx context.Context, limit time.Duration) (health, error) {
	ctx, cancel := withLimit(ctx, limit)
	defer cancel()
	conn, err := m.dial(ctx)
	if err != nil {
		return health{}, explain(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	sent := time.Now()
	io.WriteString(conn, "srvr")
	text, err := io.ReadAll(io.LimitReader(conn, 1<<16))
	if took := int64(time.Since(sent)); len(text) > 0 {
		before := m.trip.Load()
		if before == 0 {
			before = took
		}
		m.trip.Store((3*before + took) / 4)
	}
	return readHealth(string(text), explain(ctx, err))
}

// readHealth takes a connection that is cut after the answer for a good one.
func readHealth(text string, cut error) (h health, err error) {
	switch {
	case strings.Contains(text, "not currently serving"):
		return h, errNoQuorum
	case strings.Contains(text, "not in the whitelist"):
		return h, nil
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "Zookeeper version":
			h.version = value
		case "Mode":
			h.mode = value
		case "Zxid":
			h.zxid, _ = strconv.ParseInt(value, 0, 64)
		}
	}
	switch {
	case h.mode != "":
		return h, nil
	case cut != nil:
		return h, cut
	}
	return h, errors.New("this is no ZooKeeper server, or one that expects TLS")
}

// withLimit is context.WithTimeout with a cause that people understand.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %v", limit))
}

// stall is an answer that did not come in time.
type stall struct{ error }

// handshake is an error before a connection is safe.
type handshake struct{ error }

func (h handshake) Unwrap() error { return h.error }

// explain gives an error of a connection in words of use to its reader.
func explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return stall{context.Cause(ctx)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return stall{errors.New("no answer in time")}
	case strings.Contains(text, "x509: "):
		return fmt.Errorf("%w; name the authority of the members by ca, or Options.TLS", err)
	case strings.Contains(text, "remote error: tls: "):
		return fmt.Errorf("%w; name a certificate that the members accept by cert and key, or Options.TLS", err)
	case errors.As(err, new(handshake)):
		return fmt.Errorf("the TLS handshake: %w; if this port does not speak TLS, write zk:// or take the secure port", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it closes the connection: it belongs to no majority, has too many connections of this machine (maxClientCnxns), or speaks TLS")
	}
	return err
}

// report notes the state of a member.
func (d *Driver) report(m *member, err error) {
	if d.calls.Alive.Err() != nil {
		return
	}
	e := driver.NodeEvent{State: driver.NodeUp, Err: err}
	if _, stalled := errors.AsType[stall](err); stalled {
		e.State = driver.NodeStalled
	} else if err != nil {
		e.State = driver.NodeDown
	} else {
		e.RoundTrip = time.Duration(m.trip.Load())
	}
	d.states.Report(m.place, e)
}

// ask probes a member and notes what it says.
func (d *Driver) ask(ctx context.Context, m *member, limit time.Duration) (health, error) {
	h, err := m.probe(ctx, limit)
	m.leads.Store(h.leads())
	d.report(m, err)
	return h, err
}

// survey asks all members who leads. It returns as soon as one says that it does.
func (d *Driver) survey(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	leads := make(chan *member, len(d.members))
	for _, m := range d.members {
		all.Go(func() {
			if h, _ := m.probe(ctx, limit); !h.leads() {
				m = nil
			}
			leads <- m
		})
	}
	var leader *member
	for range d.members {
		if leader = <-leads; leader != nil {
			break
		}
	}
	for _, m := range d.members {
		m.leads.Store(m == leader)
	}
}

// order is the members in the order in which to try them: who leads, then those that are up.
func (d *Driver) order() []*member {
	rank := func(m *member) int {
		up, _ := d.states.Up(m.place)
		switch {
		case m.leads.Load():
			return 0
		case up:
			return 1
		}
		return 2
	}
	all := slices.Clone(d.members)
	slices.SortStableFunc(all, func(a, b *member) int { return rank(a) - rank(b) })
	return all
}

// watch asks the members for their state until Close.
func (d *Driver) watch() {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		for _, m := range d.members {
			all.Go(func() { d.ask(d.calls.Alive, m, callTime) })
		}
		if !sleep(d.calls.Alive, probeEvery) {
			return
		}
	}
}
