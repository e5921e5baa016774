package zookeeper

import (
	"cmp"
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
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// probeEvery is the interval at which idle members are asked for their state.
	probeEvery = 10 * time.Second
)

// member is one server of the ensemble.
type member struct {
	name     string
	place    int                                                      // index in the list of members
	tls      *tls.Config                                              // nil: no TLS
	renewTLS func(*tls.Config) (*tls.Config, error)                   // nil: the settings do not change
	over     func(ctx context.Context, addr string) (net.Conn, error) // opens the connection below TLS
	states   *driverkit.States
	leads    atomic.Bool // as of the last probe
}

// dialTCP opens a TCP connection.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// tlsConfig returns the TLS settings for the next connection.
func (m *member) tlsConfig() (config *tls.Config, err error) {
	config = m.tls.Clone()
	if m.renewTLS != nil {
		if config, err = m.renewTLS(config); err != nil {
			return nil, err
		}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(m.name)
	}
	return config, nil
}

// dial opens a connection.
func (m *member) dial(ctx context.Context) (net.Conn, error) {
	if m.tls == nil {
		return m.over(ctx, m.name)
	}
	config, err := m.tlsConfig()
	if err != nil {
		return nil, err
	}
	conn, err := m.over(ctx, m.name)
	if err != nil {
		return nil, err
	}
	safe := tls.Client(conn, config)
	if err := safe.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, handshakeError{err}
	}
	return safe, nil
}

// health is the state that a member reports.
type health struct {
	mode string // leader, follower, observer or standalone; empty: not reported
	zxid int64  // zxid of the last change that it knows

	version string
}

// epoch returns the number of the election.
func (h health) epoch() int64 { return h.zxid >> 32 }

// leads reports whether the member alone decides when sessions end.
func (h health) leads() bool { return h.mode == "leader" || h.alone() }

// alone reports whether the member is no part of an ensemble of several.
func (h health) alone() bool { return h.mode == "standalone" }

var (
	errNoQuorum = errors.New("it does not serve clients, as it belongs to no majority")
	errSilent   = errors.New("the command srvr, which reports the leader, is not allowed; add srvr to 4lw.commands.whitelist")
)

// runFairly calls fn, which gives up after limit. If fn returns so late that this process must have been
// suspended, runFairly calls it once more: the time-out then proves nothing about the member, whose answer may
// have been waiting.
func runFairly[T any](ctx context.Context, limit time.Duration, fn func() (T, error)) (T, error) {
	begun := time.Now()
	value, err := fn()
	if _, stalled := errors.AsType[driverkit.StallError](err); stalled && ctx.Err() == nil && wasSuspended(begun.Add(limit), limit) {
		return fn()
	}
	return value, err
}

// wasSuspended reports whether a wait until end returned so late that this process must have been suspended.
func wasSuspended(end time.Time, limit time.Duration) bool { return time.Since(end) > limit/4 }

// probe sends the member the command srvr, which needs no session. If the connection is cut before an answer,
// it sends srvr once more: a member that serves other clients may also cut connections, and is not down.
func (m *member) probe(ctx context.Context, limit time.Duration) (h health, err error) {
	for range 2 {
		h, err = runFairly(ctx, limit, func() (health, error) { return m.probeOnce(ctx, limit) })
		if !errors.Is(err, errNotZooKeeper) && !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	return h, err
}

func (m *member) probeOnce(ctx context.Context, limit time.Duration) (health, error) {
	ctx, cancel := driverkit.WithLimit(ctx, limit)
	defer cancel()
	conn, err := m.dial(ctx)
	if err != nil {
		return health{}, explainError(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	sent := time.Now()
	io.WriteString(conn, "srvr")
	text, err := io.ReadAll(io.LimitReader(conn, 1<<16))
	if len(text) > 0 {
		m.states.SetRoundTrip(m.place, time.Since(sent))
	}
	return readHealth(string(text), explainError(ctx, err))
}

// errNotZooKeeper reports a server that ends a connection without an answer.
var errNotZooKeeper = errors.New("this is not a ZooKeeper server, or one that expects TLS")

// readHealth parses the answer to srvr. If the connection was cut after the whole answer, that is no error.
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
	case h.mode == "read-only":
		return health{}, errNoQuorum
	case h.mode != "":
		return h, nil
	case cut != nil:
		return h, cut
	}
	return h, errNotZooKeeper
}

// handshakeError is an error before TLS is established.
type handshakeError struct{ error }

func (h handshakeError) Unwrap() error { return h.error }

// explainError rewrites the error of a connection for its reader.
func explainError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var timeout net.Error
	mend := driverkit.URLOptionNames.TLSFix(err.Error())
	switch {
	case ctx.Err() != nil:
		return driverkit.StallError{Err: context.Cause(ctx)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return driverkit.StallError{Err: errors.New("no answer in time")}
	case mend != "":
		return fmt.Errorf("%w; %s", err, mend)
	case errors.As(err, new(handshakeError)):
		return fmt.Errorf("the TLS handshake: %w; if this port does not speak TLS, write zk:// or take the secure port", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it closes the connection: it belongs to no majority, has too many connections of this machine (maxClientCnxns), or speaks TLS")
	}
	return err
}

// reportAnswer reports the outcome of a request as the member's state.
func (d *Driver) reportAnswer(m *member, err error) {
	if d.calls.Alive.Err() == nil {
		d.states.Report(m.place, err)
	}
}

// askMember probes a member and reports its answer. The end of ctx shows nothing about the member.
func (d *Driver) askMember(ctx context.Context, m *member, limit time.Duration) (health, error) {
	h, err := m.probe(ctx, limit)
	if err != nil && ctx.Err() != nil {
		return h, err
	}
	m.leads.Store(h.leads())
	d.reportAnswer(m, err)
	return h, err
}

// downMembers returns the members that are not up, with their errors.
func (d *Driver) downMembers() (all []driver.NodeError) {
	for _, e := range d.states.Nodes() {
		if e.Err != nil {
			all = append(all, driver.NodeError{Node: e.Node, Err: e.Err})
		}
	}
	return all
}

// surveyMembers probes all members to find the leader. It returns as soon as one member reports that it leads.
func (d *Driver) surveyMembers(ctx context.Context, limit time.Duration) {
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

// memberOrder returns the members in the order in which to try them: the leader, then the members that are up.
func (d *Driver) memberOrder() []*member {
	leader := slices.IndexFunc(d.members, func(m *member) bool { return m.leads.Load() })
	return driverkit.AskOrder(d.states, d.members, leader)
}

// watchMembers probes the members at intervals until Close.
func (d *Driver) watchMembers() {
	for {
		err := d.checkOneEnsemble(d.calls.Alive)
		d.mu.Lock()
		d.split = err
		d.mu.Unlock()
		if !driverkit.Sleep(d.calls.Alive, probeEvery) {
			return
		}
	}
}

// checkOneEnsemble probes all members. It returns an error if two of them serve different ensembles, whose
// locks do not exclude each other.
//
// Two members of one ensemble may both claim to lead for a while, if one was deposed and has not noticed. That
// one has no majority for requests after the other leads, and the other has a later epoch. And two names may lead
// to one leader, which then resumes a session under either name. So there are two ensembles if the member with the
// earlier epoch executes a transaction, the other does not know its session, and both lead in their epochs before
// and after that.
func (d *Driver) checkOneEnsemble(ctx context.Context) error {
	all := make([]health, len(d.members))
	var wait sync.WaitGroup
	for i, m := range d.members {
		wait.Go(func() { all[i], _ = d.askMember(ctx, m, pace.CallTime()) })
	}
	wait.Wait()
	var lead []int // indices of members
	for i, h := range all {
		if h.leads() {
			lead = append(lead, i)
		}
	}
	if len(lead) < 2 {
		return nil
	}
	slices.SortFunc(lead, func(i, j int) int { return cmp.Compare(all[i].epoch(), all[j].epoch()) })
	if !d.keepsSessionsApart(ctx, d.members[lead[0]], d.members[lead[1]]) {
		return nil
	}
	for _, i := range lead[:2] {
		if h, _ := d.members[i].probe(ctx, pace.CallTime()); !h.leads() || h.epoch() != all[i].epoch() {
			return nil
		}
	}
	return driverkit.PermanentError{Err: fmt.Errorf("%s and %s lead two ensembles, whose locks do not exclude one another; name the members of one ensemble",
		d.members[lead[0]].name, d.members[lead[1]].name)}
}

// keepsSessionsApart reports whether m carries out a transaction of a new session that other does not know.
func (d *Driver) keepsSessionsApart(ctx context.Context, m, other *member) bool {
	ctx, cancel := driverkit.WithLimit(ctx, 2*pace.CallTime())
	defer cancel()
	s := &session{d: d, key: anyTTL, ttl: lookTTL, quit: ctx, password: make([]byte, 16)}
	l, err := s.openSessionAt(m, pace.CallTime())
	if err != nil {
		return false
	}
	defer l.conn.Close()
	defer context.AfterFunc(ctx, func() { l.conn.Close() })()
	if _, err = l.askOnce(confirmRequest([]string{"/"})); err != nil {
		return false
	}
	again, err := s.openSessionAt(other, pace.CallTime())
	if err == nil {
		defer again.conn.Close()
		again.askOnce(goodbyeRequest())
		return false
	}
	l.askOnce(goodbyeRequest())
	return errors.Is(err, errOver)
}
