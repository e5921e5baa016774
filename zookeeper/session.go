package zookeeper

// This file answers whether a session stands, and until when: what its connections bring.

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
	// idleTime bounds the life of a session that no lock needs.
	idleTime = 20 * time.Second
	// agePart of its TTL is how old a connection to a member that does not lead may be when
	// a grant counts from it.
	agePart = 8
	// strayTime is for how long a creation without an answer may still be carried out. Servers close a connection from which they
	// have heard nothing for the timeout of its session, which is 40 s at most unless they are set up otherwise.
	strayTime = 10 * time.Minute
)

var (
	// errOver means that a session is over, and all nodes that it made are gone.
	errOver = errors.New("the session is over")
	// errEnded is the loss of a lease by that.
	errEnded = &driver.LostError{Why: "the servers have ended its session, as they had not heard of this client for the TTL"}
	// errMove has a session go on over another connection.
	errMove = errors.New("the connection is renewed")
)

// session is a session of ZooKeeper, which all locks with the same TTL share. It outlives its
// connections.
//
//	          answer                     no answer, cut
//	opening ─────────> connected (Held) ───────────────> suspended (still trusted)
//	   │                   │  ▲                               │   │
//	   │ other TTL         │  └───────────────────────────────┘   │ the servers say that
//	   ▼                   │ close                  answer        ▼ it is over
//	refused                ▼                                    lost
type session struct {
	d    *Driver
	key  time.Duration // in d.sessions: the TTL that was asked for, or anyTTL
	ttl  time.Duration
	quit context.Context // ends with the session
	end  context.CancelFunc
	xids atomic.Uint32 // of its requests, over all connections

	mu       sync.Mutex // guards what follows
	id       int64
	password []byte
	zxid     int64     // the last that was seen: no member that knows less will do
	answered time.Time // when there was an answer last
	link     *link     // nil: there is no connection
	failed   error     // why the last round of members brought none; nil: it goes on
	over     error     // why the session is over
	changed  chan struct{}
	watches  map[string]chan struct{} // by path: closed when it changes, and when the connection ends
	base     time.Time                // from when the servers count the TTL, at least
	strays   map[string]stray         // by owner
	sweeping bool                     // a goroutine looks for the nodes of strays
	users    int
	idle     time.Time // since when users is 0
}

func (d *Driver) newSession(key time.Duration) *session {
	ttl := key
	if key == anyTTL {
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

// update sets something in s and wakes its waiters.
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
		case errors.Is(err, errOver) || driverkit.Lasts(err):
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
			l.end(errOver) // close may not have seen it
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
		driverkit.Sleep(s.quit, pause) // the member may cut the next one as well
		pause = min(2*pause, pace.LongPause)
	}
}

// noteCut notes that a connection ended. Silence is news of the member. A member that cuts the connection may be well, and have ended the
// session: that member is asked.
func (s *session) noteCut(l *link, err error) {
	l.member.leads.Store(false)
	if _, stalled := errors.AsType[driverkit.Stall](err); stalled {
		s.d.reportAnswer(l.member, err)
		return
	}
	s.d.links.Go(func() { s.d.askMember(s.quit, l.member, l.limit) })
}

// connect tries the members in turn.
func (s *session) connect() (*link, error) {
	limit := pace.RequestTime(s.ttl, pace.Members)
	s.d.surveyMembers(s.quit, limit)
	failed := s.d.states.Unavailable(nil)
	for _, m := range s.d.memberOrder() {
		l, err := runFairly(s.quit, limit, func() (*link, error) { return s.greetMember(m, limit) })
		if s.quit.Err() != nil {
			return l, s.quit.Err()
		}
		if err == nil || errors.Is(err, errOver) {
			s.d.reportAnswer(m, nil)
			return l, err
		}
		if driverkit.Lasts(err) {
			failed.Nodes = []driver.NodeError{{Node: m.name, Err: err}}
			break
		}
		s.d.reportAnswer(m, err)
		failed.Nodes = append(failed.Nodes, driver.NodeError{Node: m.name, Err: err})
	}
	return nil, failed
}

// greetMember opens the session, or goes on with it, over a new connection to m.
func (s *session) greetMember(m *member, limit time.Duration) (_ *link, err error) {
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
		if errors.Is(err, driver.ErrInvalid) { // the session is not what it should be: end it
			l.askOnce(goodbyeRequest())
		}
		conn.Close()
		if errors.Is(err, errOver) || driverkit.Lasts(err) {
			return nil, err
		}
		return nil, explainError(ctx, err)
	}
	// A member that changes its part closes all connections, so that this one leads for as
	// long as the connection stands.
	h, _ := s.d.askMember(ctx, m, limit)
	l.leads = h.leads()
	if !stop() {
		conn.Close()
		return nil, driverkit.Stall{Err: context.Cause(ctx)}
	}
	return l, nil
}

// lastSeen returns the last change that the session has seen. Where there was no answer for a TTL, it is none: members that were set back to an
// older state would refuse the session for ever. No claim takes a lock then before a majority has logged a transaction of its session, and
// reads behind that. The caller has the mutex.
func (s *session) lastSeen() int64 {
	if time.Since(s.answered) > s.ttl {
		return 0
	}
	return s.zxid
}

// noteGrant notes what the servers have granted.
func (s *session) noteGrant(g greeting, asked int32) error {
	granted := time.Duration(g.timeout) * time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	switch known := s.id != 0; {
	case g.id == 0:
		return errOver
	case g.timeout <= 0, s.key == anyTTL && granted < minTTL: // it would be renewed without a pause
		return fmt.Errorf("it grants a session of %v", granted)
	case s.key == anyTTL:
		s.ttl = granted // nothing but run reads it now
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

// awaitLink returns the connection. It waits until there is one, or all members have failed.
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

// unansweredError returns the error of a call whose context has ended before the answer. Its caller may
// have left early, so the error names only members known to be down.
func (d *Driver) unansweredError(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ctx.Err(), d.states.Unavailable(errors.New("no answer yet"), d.downMembers()...))
}

// sendAll sends requests together, and returns when all have an answer, which may be an error of
// its own. Its error says that some have none, and may be carried out or not.
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

// confirmNodes makes sure that the nodes stand, and that the session does for another TTL from
// the returned time. Those that are gone are false. It sends other requests together with its
// own.
//
// Only the member that leads knows how long a session lasts. A member that follows tells it
// of its clients now and then, and answers their pings even when it cannot. But it asks when
// a client comes with a session. So where the connection is not to the member that leads, a
// new one is opened, which the servers count from. And only what a majority has logged proves
// that the one that leads still did.
func (s *session) confirmNodes(ctx context.Context, paths []string, beside ...*request) (base time.Time, stands []bool, err error) {
	stands = slices.Repeat([]bool{true}, len(paths))
	for again := true; again; {
		var asked []int // indices of paths
		var names []string
		for i, path := range paths {
			if stands[i] {
				asked, names = append(asked, i), append(names, path)
			}
		}
		if err := s.refreshLink(ctx); err != nil || len(asked) == 0 {
			return base, stands, err
		}
		r := confirmRequest(names)
		if err := s.sendAll(ctx, append([]*request{r}, beside...)...); err != nil {
			return base, nil, err
		}
		if r.err != nil {
			return base, nil, s.d.refusedError(r.err)
		}
		outcomes, err := r.outcomes(len(asked))
		if err != nil {
			return base, nil, s.d.states.Unavailable(err)
		}
		again, beside = false, nil
		for n, i := range asked {
			if outcomes[n] == codeNoNode {
				stands[i], again = false, true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base, stands, nil
}

// refreshLink opens a new connection where the present one is old and not to the member that
// leads.
func (s *session) refreshLink(ctx context.Context) error {
	l, err := s.awaitLink(ctx)
	if err != nil || l.leads || time.Since(l.opened) < s.ttl/agePart {
		return err
	}
	l.end(errMove)
	_, err = s.awaitLink(ctx)
	return err
}

// noteAlive notes that a member has answered a ping.
func (s *session) noteAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = time.Now()
}

// noteAnswer notes what an answer proves.
func (s *session) noteAnswer(l *link, f flight, zxid int64) {
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
	return driverkit.Trust(s.base, s.ttl)
}

// watchPath returns a channel that is closed when path changes or the connection ends. The caller
// then sends the request that has the servers watch.
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

// stray is an attempt whose creation had no answer and was not found.
type stray struct {
	folder string
	since  time.Time
}

// noteStray notes that a node of owner, if there ever is one in folder, is nobody's.
func (s *session) noteStray(owner, folder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strays == nil {
		s.strays = make(map[string]stray)
	}
	s.strays[owner] = stray{folder, time.Now()}
}

// sweepStrays deletes, in the background, the nodes that are nobody's. It is called at each new connection, and six times in a TTL. When the
// session comes back to a member that it has left, that member may carry out what it has read from the connection before, and on a busy
// machine do so after the new one was looked over. After a late greeting the next change that the session asks for, a renewal for
// instance, is refused, and brings a new connection.
func (s *session) sweepStrays() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.strays, func(_ string, n stray) bool { return time.Since(n.since) > strayTime })
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

// clearStrays deletes the nodes of strays that are there.
func (s *session) clearStrays(strays map[string]stray) {
	ctx := s.d.calls.Work
	folders := make(map[string]*request)
	all := []*request{syncWith(s.d.root)}
	for _, n := range strays {
		if folders[n.folder] == nil {
			folders[n.folder] = getChildren(n.folder)
			all = append(all, folders[n.folder])
		}
	}
	if s.sendAll(ctx, all...) != nil {
		return // the next sweep looks again
	}
	for folder, r := range folders {
		if r.err != nil {
			continue
		}
		for name := range r.reply.names() {
			if e, ok := readEntry(name); ok && strays[e.owner].folder == folder {
				s.deleteNode(ctx, folder+"/"+name, func() {})
			}
		}
	}
}

// close ends the session. Its nodes go with it, unless they are kept: then they stand until
// the TTL is over.
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
