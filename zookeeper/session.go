package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/direct"
)

const (
	// idleTime is how long a session stays that no lock needs.
	idleTime = 20 * time.Second
	// agePart of its TTL is how old a connection to a member that does not lead may be when
	// a grant counts from it.
	agePart = 8
)

var (
	// errOver says that a session is over, and all nodes that it made are gone.
	errOver = errors.New("the session is over")
	// errCut says that a connection ended before the answer came.
	errCut = errors.New("the connection ended before the answer")
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

	mu       sync.Mutex // guards what follows
	id       int64
	password []byte
	zxid     int64 // the last that was seen: no member that knows less will do
	link     *link // nil: there is no connection
	failed   error // why the last round of members brought none; nil: it goes on
	over     error // why the session is over
	changed  chan struct{}
	watches  map[string]chan struct{} // by path: closed when it changes, and when the connection ends
	base     time.Time                // from when the servers count the TTL, at least
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
	d.links.Go(s.run)
	return s
}

// change sets something about s and wakes those who wait for it.
func (s *session) change(set func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set()
	close(s.changed)
	s.changed = make(chan struct{})
}

// run keeps the session connected until it is over.
func (s *session) run() {
	defer s.end()
	for pause := shortPause; ; {
		l, err := s.connect()
		switch {
		case s.quit.Err() != nil:
			if l != nil {
				l.conn.Close()
			}
			s.change(func() { s.over, s.link = errOver, nil })
			return
		case errors.Is(err, errOver) || lasting(err):
			s.d.forget(s)
			s.change(func() { s.over = err })
			return
		case err != nil:
			s.change(func() { s.failed = err })
			if !sleep(s.quit, pause) {
				continue
			}
			pause = min(2*pause, longPause)
			continue
		}
		pause = shortPause
		s.change(func() { s.link, s.failed = l, nil })
		if s.quit.Err() != nil {
			l.end(errOver) // close may not have seen it
		}
		err = l.run()
		s.change(func() {
			s.link = nil
			for path, c := range s.watches {
				close(c)
				delete(s.watches, path)
			}
		})
		l.drop()
		if !errors.Is(err, errMove) && s.quit.Err() == nil {
			s.d.report(l.member, err)
			l.member.leads.Store(false)
		}
	}
}

// connect tries the members in turn.
func (s *session) connect() (*link, error) {
	limit := patience(s.ttl)
	s.d.survey(s.quit, limit)
	failed := s.d.unavailable(nil)
	for _, m := range s.d.order() {
		l, err := s.greet(m, limit)
		if s.quit.Err() != nil {
			return l, s.quit.Err()
		}
		if err == nil || errors.Is(err, errOver) {
			s.d.report(m, nil)
			return l, err
		}
		if lasting(err) {
			failed.Nodes = []driver.NodeError{{Node: m.name, Err: err}}
			break
		}
		s.d.report(m, err)
		failed.Nodes = append(failed.Nodes, driver.NodeError{Node: m.name, Err: err})
	}
	return nil, failed
}

// greet opens the session, or goes on with it, over a new connection to m.
func (s *session) greet(m *member, limit time.Duration) (_ *link, err error) {
	ctx, cancel := withLimit(s.quit, limit)
	defer cancel()
	s.mu.Lock()
	hello := greeting{s.zxid, int32(s.ttl / time.Millisecond), s.id, s.password}
	s.mu.Unlock()
	conn, err := m.dial(ctx)
	if err != nil {
		return nil, explain(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	l := &link{s: s, member: m, conn: conn, in: bufio.NewReader(conn), wake: make(chan struct{}, 1), limit: limit}
	l.opened = time.Now()
	reply, err := l.exchange(hello.packet())
	if err == nil {
		var g greeting
		if g, err = welcome(reply); err == nil {
			err = s.enter(g, hello.timeout)
		}
	}
	if err == nil && s.d.auth != "" {
		err = l.login(s.d.auth)
	}
	if err != nil {
		if errors.Is(err, driver.ErrInvalid) { // the session is not what it should be: end it
			l.exchange(l.form(goodbye()))
		}
		conn.Close()
		if errors.Is(err, errOver) || lasting(err) {
			return nil, err
		}
		return nil, explain(ctx, err)
	}
	// A member that changes its part closes all connections, so that this one leads for as
	// long as the connection stands.
	h, _ := s.d.ask(ctx, m, limit)
	l.leads = h.leads()
	if !stop() {
		conn.Close()
		return nil, stall{context.Cause(ctx)}
	}
	return l, nil
}

// enter notes what the servers have granted.
func (s *session) enter(g greeting, asked int32) error {
	granted := time.Duration(g.timeout) * time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	switch known := s.id != 0; {
	case g.id == 0:
		return errOver
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

// ready returns the connection. It waits until there is one, or all members have failed.
func (s *session) ready(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, failed, over, changed := s.link, s.failed, s.over, s.changed
		s.mu.Unlock()
		switch {
		case over != nil:
			return nil, over
		case l != nil && l.stands():
			return l, nil
		case l == nil && failed != nil:
			return nil, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), s.d.unavailable(errors.New("no connection yet")))
		}
	}
}

// do sends requests together, and returns when all have an answer, which may be an error of
// its own. Its error says that some have none, and may be carried out or not.
func (s *session) do(ctx context.Context, all ...*request) error {
	l, err := s.ready(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	b := l.send(all)
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ctx.Err(), l.cut(errors.New("no answer yet")))
	}
}

// again repeats fn while it reaches no member, until ctx ends.
func (s *session) again(ctx context.Context, fn func() error) error {
	for pause := shortPause; ; pause = min(2*pause, longPause) {
		err := fn()
		if !errors.Is(err, driver.ErrUnavailable) || lasting(err) || !sleep(ctx, pause) {
			return err
		}
	}
}

// confirm makes sure that the nodes stand, and that the session does for another TTL from
// the returned time. Those that are gone are false. It sends other requests together with its
// own.
//
// Only the member that leads knows how long a session lasts. A member that follows tells it
// of its clients now and then, and answers their pings even when it cannot. But it asks when
// a client comes with a session. So where the connection is not to the member that leads, a
// new one is opened, which the servers count from. And only what a majority has logged proves
// that the one that leads still did.
func (s *session) confirm(ctx context.Context, paths []string, beside ...*request) (base time.Time, stands []bool, err error) {
	stands = make([]bool, len(paths))
	left := make(map[string]int, len(paths))
	for i, path := range paths {
		left[path] = i
	}
	for len(left) > 0 {
		if err := s.refresh(ctx); err != nil {
			return base, nil, err
		}
		var asked []string
		for path := range left {
			asked = append(asked, path)
		}
		r := confirm(asked)
		if err := s.do(ctx, append([]*request{r}, beside...)...); err != nil {
			return base, nil, err
		}
		beside = nil
		if r.err != nil {
			return base, nil, s.d.refused(r.err)
		}
		outcomes, err := r.outcomes(len(asked))
		if err != nil {
			return base, nil, s.d.unavailable(err)
		}
		fine := true
		for i, path := range asked {
			if outcomes[i] == codeNoNode {
				delete(left, path)
				fine = false
			}
		}
		if fine {
			for _, i := range left {
				stands[i] = true
			}
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base, stands, nil
}

// refresh opens a new connection where the present one is old and not to the member that
// leads.
func (s *session) refresh(ctx context.Context) error {
	l, err := s.ready(ctx)
	if err != nil || l.leads || time.Since(l.opened) < s.ttl/agePart {
		return err
	}
	l.end(errMove)
	for {
		s.mu.Lock()
		now, changed := s.link, s.changed
		s.mu.Unlock()
		if now != l {
			_, err = s.ready(ctx)
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), s.d.unavailable(errMove))
		}
	}
}

// trusted is until when the session stands for certain.
func (s *session) trusted() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return direct.Trust(s.base, s.ttl)
}

// watch is a channel that is closed when path changes or the connection ends. The caller
// then sends the request that has the servers watch.
func (s *session) watch(path string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.watches[path]
	if c == nil {
		c = make(chan struct{})
		s.watches[path] = c
	}
	return c
}

// fire says that path has changed.
func (s *session) fire(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.watches[path]; c != nil {
		close(c)
		delete(s.watches, path)
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
		b := l.send([]*request{goodbye()})
		select {
		case <-b.done:
		case <-time.After(l.limit):
		}
	}
	l.end(errOver)
}

// link is one connection of a session.
type link struct {
	s      *session
	member *member
	conn   net.Conn
	in     *bufio.Reader
	leads  bool      // the member decides how long sessions last
	opened time.Time // before the greeting was sent
	limit  time.Duration
	wake   chan struct{} // has an element when there is something to write

	mu      sync.Mutex // guards what follows
	out     []byte     // to be written
	pending []flight   // in the order of sending, which is that of the answers
	pinged  time.Time  // when the ping was sent that has no answer; zero: all have one
	xid     int32
	dead    error
}

// batch is some requests that were sent together.
type batch struct {
	left int
	err  error // why some have no answer
	done chan struct{}
}

// flight is a request on its way.
type flight struct {
	*request
	batch *batch
	xid   int32
	sent  time.Time
}

// exchange sends one packet and reads one, before run.
func (l *link) exchange(p []byte) ([]byte, error) {
	if _, err := l.conn.Write(p); err != nil {
		return nil, err
	}
	return readPacket(l.in)
}

// login says who the client is.
func (l *link) login(auth string) error {
	reply, err := l.exchange(packet(func(w *writer) {
		w.int32(xidAuth)
		w.int32(opAuth)
		w.int32(0)
		w.text("digest")
		w.text(auth)
	}))
	if err != nil {
		return err
	}
	r := reader{b: reply}
	r.take(4 + 8)
	if c := code(r.int32()); c != 0 {
		return l.s.d.refused(c)
	}
	return r.err
}

// send puts requests on their way.
func (l *link) send(all []*request) *batch {
	b := &batch{left: len(all), done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead != nil {
		b.err = l.cut(l.dead)
		close(b.done)
		return b
	}
	now := time.Now()
	for _, r := range all {
		l.out = append(l.out, l.form(r)...)
		l.pending = append(l.pending, flight{r, b, l.xid, now})
	}
	l.stir()
	return b
}

// form gives the request the next number.
func (l *link) form(r *request) []byte {
	if l.xid++; l.xid < 0 {
		l.xid = 1
	}
	return packet(func(w *writer) {
		w.int32(l.xid)
		w.int32(r.op)
		r.write(w)
	})
}

// stir has the writer look. The caller has the mutex.
func (l *link) stir() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
	l.due()
}

// due sets until when the member has to answer. The caller has the mutex.
func (l *link) due() {
	oldest := l.pinged
	if len(l.pending) > 0 && (oldest.IsZero() || l.pending[0].sent.Before(oldest)) {
		oldest = l.pending[0].sent
	}
	var end time.Time
	if !oldest.IsZero() {
		end = oldest.Add(l.limit)
	}
	l.conn.SetReadDeadline(end)
}

// run reads answers and events until the connection ends, and returns why.
func (l *link) run() error {
	stop, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { l.write(stop) })
	defer writing.Wait()
	defer cancel()
	for {
		p, err := readPacket(l.in)
		if err == nil {
			err = l.receive(p)
		}
		if err != nil {
			l.end(explain(context.Background(), err))
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.dead
		}
	}
}

// write writes what is to be sent, and pings.
func (l *link) write(stop context.Context) {
	ping := packet(func(w *writer) {
		w.int32(xidPing)
		w.int32(opPing)
	})
	every := l.s.ttl / 6
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		l.mu.Lock()
		out := l.out
		l.out = nil
		l.mu.Unlock()
		if len(out) > 0 {
			l.conn.SetWriteDeadline(time.Now().Add(l.limit))
			if _, err := l.conn.Write(out); err != nil {
				l.end(explain(context.Background(), err))
				return
			}
			timer.Reset(every)
		}
		select {
		case <-l.wake:
		case <-timer.C:
			if l.s.d.retire(l.s) {
				continue
			}
			l.mu.Lock()
			if l.pinged.IsZero() {
				l.pinged = time.Now()
			}
			l.out = append(l.out, ping...)
			l.due()
			l.mu.Unlock()
		case <-stop.Done():
			return
		}
	}
}

// receive takes one packet of the member.
func (l *link) receive(p []byte) error {
	r := reader{b: p}
	xid, zxid, c := r.int32(), r.int64(), code(r.int32())
	if r.err != nil {
		return r.err
	}
	switch xid {
	case xidWatch:
		r.take(4 + 4)
		l.s.fire(r.text())
		return r.err
	case xidPing:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pinged = time.Time{}
		l.due()
		return nil
	}
	l.mu.Lock()
	if len(l.pending) == 0 || l.pending[0].xid != xid {
		l.mu.Unlock()
		return fmt.Errorf("an answer to request %d, which was not the next", xid)
	}
	f := l.pending[0]
	l.pending = l.pending[1:]
	l.due()
	l.mu.Unlock()
	if c != 0 {
		f.err = c
	}
	f.reply = r
	l.s.heard(l, f, zxid)
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.batch.left--; f.batch.left == 0 {
		close(f.batch.done)
	}
	if c == codeExpired || c == codeMoved {
		return c // the next greeting tells which
	}
	return nil
}

// heard notes what an answer proves.
func (s *session) heard(l *link, f flight, zxid int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zxid = max(s.zxid, zxid)
	if f.err != nil || !f.changes() {
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

// stands is false when the connection has ended, also before the session knows.
func (l *link) stands() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead == nil
}

// end ends the connection.
func (l *link) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead == nil {
		l.dead = why
	}
	l.conn.Close()
}

// drop says to those who wait for answers that there are none.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.pending {
		if f.batch.err == nil {
			f.batch.err = l.cut(l.dead)
			close(f.batch.done)
		}
	}
	l.pending = nil
}

// cut is the error of a request without an answer.
func (l *link) cut(why error) error {
	failed := l.s.d.unavailable(nil)
	failed.Nodes = []driver.NodeError{{Node: l.member.name, Err: fmt.Errorf("%w: %w", errCut, why)}}
	return failed
}
