package zookeeper

// This file tracks the existence and the end of a session, by the answers on its connections.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// idleTime bounds the life of a session without locks.
	idleTime = 20 * time.Second
	// agePart bounds the age of a connection to a follower on which a grant may count, as a part of the TTL.
	agePart = 8
	// strayTime bounds the time in which a creation without an answer may still be executed. Servers close a
	// connection that was silent for its session's timeout, which is 40 s at most by default.
	strayTime = 10 * time.Minute
)

var (
	// errOver reports that a session is over and all its nodes are deleted.
	errOver = errors.New("the session is over")
	// errEnded is the cause of a lease loss by the end of its session.
	errEnded = &driver.LostError{Reason: "the servers have ended its session, as they had not heard of this client for the TTL"}
	// errMove makes a session continue over another connection.
	errMove = errors.New("the connection is renewed")
)

// session is a ZooKeeper session, shared by all locks with the same TTL. It outlives its connections.
//
//	          answer                     no answer, cut
//	opening ─────────> connected (Held) ───────────────> suspended (still trusted)
//	   │                   │  ▲                               │   │
//	   │ other TTL         │  └───────────────────────────────┘   │ the servers report
//	   ▼                   │ close                  answer        ▼ that it is over
//	refused                ▼                                    lost
type session struct {
	d    *Driver
	key  time.Duration // key in d.sessions: the requested TTL, or anyTTL
	ttl  time.Duration
	quit context.Context // ends with the session
	end  context.CancelFunc
	xids atomic.Uint32 // last request number, over all connections

	mu       sync.Mutex // guards the fields below
	id       int64
	password []byte
	zxid     int64     // last zxid seen: a member with an earlier state is rejected
	answered time.Time // time of the last answer
	link     *link     // nil: no connection
	failed   error     // why the last round over the members failed; nil: still trying
	over     error     // why the session is over
	changed  chan struct{}
	watches  map[string]chan struct{} // by path: closed when the path changes or the connection ends
	base     time.Time                // earliest time from which the servers count the TTL
	strays   map[string]strayNode     // by owner
	sweeping bool                     // a goroutine is looking for stray nodes
	users    int
	idle     time.Time // time since which users is 0
}

func (d *Driver) newSession(ttl time.Duration) *session {
	key := ttl
	if ttl == anyTTL {
		ttl = lookTTL
	}
	s := &session{d: d, key: key, ttl: ttl, password: make([]byte, 16), changed: make(chan struct{}), watches: make(map[string]chan struct{}), idle: time.Now()}
	s.quit, s.end = context.WithCancel(context.Background())
	d.links.Go(s.connectLoop)
	return s
}

// isOver reports whether the session is over.
func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over != nil
}

// update changes fields of s and wakes its waiters.
func (s *session) update(set func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set()
	close(s.changed)
	s.changed = make(chan struct{})
}

// connectLoop keeps the session connected until it is over.
func (s *session) connectLoop() {
	defer s.end()
	for pause := pace.ShortPause; ; {
		l, err := s.connect()
		switch {
		case s.quit.Err() != nil:
			if l != nil {
				l.conn.Close()
			}
			s.update(func() { s.over, s.link = errOver, nil })
			return
		case errors.Is(err, errOver) || driverkit.IsPermanent(err):
			s.d.forgetSession(s)
			s.update(func() { s.over = err })
			return
		case err != nil:
			s.update(func() { s.failed = err })
			if !driverkit.Sleep(s.quit, pause) {
				continue
			}
			pause = min(2*pause, pace.LongPause)
			continue
		}
		s.update(func() { s.link, s.failed = l, nil })
		if s.quit.Err() != nil {
			l.end(errOver) // close may not have seen this link
		}
		s.sweepStrays()
		err = l.readLoop()
		s.update(func() {
			s.link = nil
			for path, c := range s.watches {
				close(c)
				delete(s.watches, path)
			}
		})
		l.failPending()
		if errors.Is(err, errMove) || s.quit.Err() != nil {
			continue
		}
		s.noteCut(l, err)
		if time.Since(l.opened) > pace.LongPause {
			pause = pace.ShortPause
			continue
		}
		driverkit.Sleep(s.quit, pause) // the member may cut the next connection too
		pause = min(2*pause, pace.LongPause)
	}
}

// noteCut reports the end of a connection. Silence counts against the member. A member that cuts the connection
// may be up and have ended the session, so the driver probes it.
func (s *session) noteCut(l *link, err error) {
	l.member.leads.Store(false)
	if _, stalled := errors.AsType[driverkit.StallError](err); stalled {
		s.d.reportAnswer(l.member, err)
		return
	}
	s.d.links.Go(func() { s.d.askMember(s.quit, l.member, l.limit) })
}

// connect tries one member after another.
func (s *session) connect() (*link, error) {
	limit := pace.RequestTime(s.ttl, pace.Members)
	s.d.surveyMembers(s.quit, limit)
	failed := s.d.states.Unavailable(nil)
	for _, m := range s.d.memberOrder() {
		l, err := runFairly(s.quit, limit, func() (*link, error) { return s.openSessionAt(m, limit) })
		if s.quit.Err() != nil {
			return l, s.quit.Err()
		}
		if err == nil || errors.Is(err, errOver) {
			s.d.reportAnswer(m, nil)
			return l, err
		}
		if driverkit.IsPermanent(err) {
			failed.Nodes = []driver.NodeError{{Node: m.name, Err: err}}
			break
		}
		s.d.reportAnswer(m, err)
		failed.Nodes = append(failed.Nodes, driver.NodeError{Node: m.name, Err: err})
	}
	return nil, failed
}

// openSessionAt opens or resumes the session over a new connection to m.
func (s *session) openSessionAt(m *member, limit time.Duration) (_ *link, err error) {
	ctx, cancel := driverkit.WithLimit(s.quit, limit)
	defer cancel()
	s.mu.Lock()
	hello := greeting{s.lastSeen(), int32(s.ttl / time.Millisecond), s.id, s.password}
	s.mu.Unlock()
	conn, err := m.dial(ctx)
	if err != nil {
		return nil, explainError(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	l := &link{s: s, member: m, conn: conn, wake: make(chan struct{}, 1), limit: limit}
	l.in = bufio.NewReader(l)
	l.opened = time.Now()
	reply, err := l.exchangePacket(hello.packet())
	if err == nil {
		var g greeting
		if g, err = readWelcome(reply); err == nil {
			err = s.noteGrant(g, hello.timeout)
		}
	}
	if err == nil && s.d.auth != "" {
		err = l.login(s.d.auth)
	}
	if err != nil {
		if errors.Is(err, driver.ErrInvalid) { // the session has another timeout: end it
			l.askOnce(goodbyeRequest())
		}
		conn.Close()
		if errors.Is(err, errOver) || driverkit.IsPermanent(err) {
			return nil, err
		}
		return nil, explainError(ctx, err)
	}
	// A member that changes its role closes all connections. So l.leads stays true for as long as the
	// connection is open. But srvr takes another connection, and the only address may be that of a load
	// balancer, behind which another member answers it.
	h, _ := s.d.askMember(ctx, m, limit)
	l.leads = h.leads() && (h.alone() || len(s.d.members) > 1)
	if !stop() {
		conn.Close()
		return nil, driverkit.StallError{Err: context.Cause(ctx)}
	}
	return l, nil
}

// lastSeen returns the last zxid that the session has seen. After a TTL without an answer it returns 0:
// members that were restored to an older state would otherwise reject the session forever. In that case no
// claim takes a lock before a majority has logged a transaction of its session, and the claim reads after
// that. The caller has the mutex.
func (s *session) lastSeen() int64 {
	if time.Since(s.answered) > s.ttl {
		return 0
	}
	return s.zxid
}

// noteGrant stores what the servers have granted.
func (s *session) noteGrant(g greeting, asked int32) error {
	granted := time.Duration(g.timeout) * time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	switch known := s.id != 0; {
	case g.id == 0:
		return errOver
	case g.timeout <= 0, s.key == anyTTL && granted < minTTL: // the renewals would have no pause
		return fmt.Errorf("it grants a session of %v", granted)
	case s.key == anyTTL:
		s.ttl = granted // only connectLoop reads it now
	case known && g.timeout != asked:
		return fmt.Errorf("it grants sessions of %v, and another member granted %v; give all members the same limits", granted, s.ttl)
	case g.timeout < asked:
		return fmt.Errorf("%w: these servers grant no TTL over %v, and %v was asked for; take a shorter TTL, or give the servers a longer maxSessionTimeout",
			driver.ErrInvalid, granted, s.ttl)
	case g.timeout > asked:
		return fmt.Errorf("%w: these servers grant no TTL under %v, and %v was asked for; take a longer TTL, or give the servers a shorter minSessionTimeout",
			driver.ErrInvalid, granted, s.ttl)
	}
	s.id, s.password = g.id, g.password
	return nil
}

// awaitLink waits for a connection and returns it, or an error once all members have failed.
func (s *session) awaitLink(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, failed, over, changed := s.link, s.failed, s.over, s.changed
		s.mu.Unlock()
		switch {
		case over != nil:
			return nil, over
		case l != nil && l.isAlive():
			return l, nil
		case l == nil && failed != nil:
			return nil, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, s.d.unansweredError(ctx)
		}
	}
}

// unansweredError returns the error of a call whose context ended before the answer. The caller may have left
// early, so the error names only members known to be down.
func (d *Driver) unansweredError(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ctx.Err(), d.states.Unavailable(errors.New("no answer yet"), d.downMembers()...))
}

// sendAll sends requests together and waits until all are answered; each has its own error. An error of
// sendAll means that some requests got no answer, and may have been executed or not.
func (s *session) sendAll(ctx context.Context, all ...*request) error {
	l, err := s.awaitLink(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	b := l.sendRequests(all)
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return s.d.unansweredError(ctx)
	}
}

// confirmNodes confirms that the nodes exist, and that the session lasts for another TTL from base. exists is
// false for a deleted node. It sends the requests beside together with its own.
//
// Only the leader knows how long a session lasts. A follower forwards the pings of its clients to it now and
// then, and answers them even when it cannot reach the leader. But it asks the leader when a client resumes a
// session. So without a connection to the leader, confirmNodes opens a new connection, from which the servers
// count. And only a transaction that a majority has logged proves that the leader was still the leader.
func (s *session) confirmNodes(ctx context.Context, paths []string, beside ...*request) (base time.Time, exists []bool, err error) {
	exists = slices.Repeat([]bool{true}, len(paths))
	for again := true; again; {
		var asked []int // indices of paths
		var names []string
		for i, path := range paths {
			if exists[i] {
				asked, names = append(asked, i), append(names, path)
			}
		}
		if err := s.refreshLink(ctx); err != nil || len(asked) == 0 {
			return base, exists, err
		}
		r := confirmRequest(names)
		if err := s.sendAll(ctx, append([]*request{r}, beside...)...); err != nil {
			return base, nil, err
		}
		if r.err != nil {
			return base, nil, s.d.refusedError(r.err)
		}
		outcomes, err := r.errorCodes(len(asked))
		if err != nil {
			return base, nil, s.d.states.Unavailable(err)
		}
		again, beside = false, nil
		for n, i := range asked {
			if outcomes[n] == codeNoNode {
				exists[i], again = false, true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base, exists, nil
}

// refreshLink opens a new connection if the current one is old and does not lead to the leader.
func (s *session) refreshLink(ctx context.Context) error {
	l, err := s.awaitLink(ctx)
	if err != nil || l.leads || time.Since(l.opened) < s.ttl/agePart {
		return err
	}
	l.end(errMove)
	_, err = s.awaitLink(ctx)
	return err
}

// noteAlive records the answer to a ping.
func (s *session) noteAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = time.Now()
}

// noteAnswer records what an answer proves.
func (s *session) noteAnswer(l *link, f pendingRequest, zxid int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zxid, s.answered = max(s.zxid, zxid), time.Now()
	if f.err != nil || !f.isTransaction() {
		return
	}
	since := f.sent
	if !l.leads {
		since = l.opened
	}
	if since.After(s.base) {
		s.base = since
	}
}

// trustedUntil returns the time until which the session certainly exists.
func (s *session) trustedUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return driverkit.TrustEnd(s.base, s.ttl)
}

// watchPath returns a channel that is closed when path changes or the connection ends. The caller then sends
// the request that sets the server-side watch.
func (s *session) watchPath(path string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.watches[path]
	if c == nil {
		c = make(chan struct{})
		s.watches[path] = c
	}
	return c
}

// fireWatches notifies the watchers of path.
func (s *session) fireWatches(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.watches[path]; c != nil {
		close(c)
		delete(s.watches, path)
	}
}

// strayNode is a claim whose creation got no answer and whose node was not found.
type strayNode struct {
	folder string
	since  time.Time
}

// noteStray records that a node of owner in folder, if it is created late, must be deleted.
func (s *session) noteStray(owner, folder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strays == nil {
		s.strays = make(map[string]strayNode)
	}
	s.strays[owner] = strayNode{folder, time.Now()}
}

// sweepStrays deletes stray nodes in the background. It runs at each new connection, and six times per TTL.
// When the session returns to an earlier member, that member may execute what it has read from the earlier
// connection; a busy member may do so after the sweep. After a late greeting, the next change that the session
// requests, such as a renewal, is rejected, which leads to a new connection.
func (s *session) sweepStrays() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.strays, func(_ string, n strayNode) bool { return time.Since(n.since) > strayTime })
	if len(s.strays) == 0 || s.sweeping || s.d.calls.Enter() != nil {
		return
	}
	s.sweeping = true
	strays := maps.Clone(s.strays)
	go func() {
		defer s.d.calls.Leave()
		s.clearStrays(strays)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sweeping = false
	}()
}

// clearStrays deletes the nodes of strays that exist.
func (s *session) clearStrays(strays map[string]strayNode) {
	ctx := s.d.calls.Work
	folders := make(map[string]bool)
	for _, n := range strays {
		folders[n.folder] = true
	}
	for folder := range folders { // one at a time: each may have many waiters
		r := getChildren(folder)
		if s.sendAll(ctx, syncWith(s.d.root), r) != nil {
			return // the next sweep looks again
		}
		if r.err != nil {
			continue
		}
		for name := range r.reply.names() {
			if e, ok := readEntry(name); ok && strays[e.owner()].folder == folder {
				s.deleteNode(ctx, folder+"/"+name, func() {})
			}
		}
	}
}

// close ends the session and so deletes its nodes. With keep, the nodes stay until the TTL is over.
func (s *session) close(keep bool) {
	s.end()
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil {
		return
	}
	if !keep {
		b := l.sendRequests([]*request{goodbyeRequest()})
		select {
		case <-b.done:
		case <-time.After(l.limit):
		}
	}
	l.end(errOver)
}
