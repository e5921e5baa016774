package zookeeper_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Constants of the protocol, with the servers' names.
const (
	opCreate      = 1
	opDelete      = 2
	opExists      = 3
	opGetData     = 4
	opSetData     = 5
	opSync        = 9
	opPing        = 11
	opGetChildren = 12
	opCheck       = 13
	opMulti       = 14
	opCreate2     = 15
	opContainer   = 19
	opAuth        = 100
	opClose       = -11

	errRuntime     = -2
	errNoNode      = -101
	errNoAuth      = -102
	errBadVersion  = -103
	errNoChildren  = -108
	errNodeExists  = -110
	errNotEmpty    = -111
	errExpired     = -112
	errInvalidACL  = -114
	errAuthFailed  = -115
	errCut         = 1 // not an error of the servers: the member cuts the connection
	permRead       = 1
	permWrite      = 2
	permCreate     = 4
	permDelete     = 8
	ownerContainer = -1 << 63

	// tick is the interval at which servers look for expired sessions: zkproc sets the same.
	tick = 500 * time.Millisecond
	// reapEvery is the interval at which servers delete empty containers.
	reapEvery = time.Minute
	// maxSteps bounds the requests at one virtual moment: a client in an endless loop would stop virtual time.
	maxSteps = 50_000
	// maxPacket bounds a request, as jute.maxbuffer does.
	maxPacket = 1 << 20
)

// juteWriter encodes jute records.
type juteWriter struct{ b []byte }

func (j *juteWriter) int32(v int32) *juteWriter {
	j.b = binary.BigEndian.AppendUint32(j.b, uint32(v))
	return j
}

func (j *juteWriter) int64(v int64) *juteWriter {
	j.b = binary.BigEndian.AppendUint64(j.b, uint64(v))
	return j
}

func (j *juteWriter) text(v string) *juteWriter {
	j.int32(int32(len(v)))
	j.b = append(j.b, v...)
	return j
}

func (j *juteWriter) bool(v bool) *juteWriter {
	if v {
		j.b = append(j.b, 1)
	} else {
		j.b = append(j.b, 0)
	}
	return j
}

// packet prepends the length of the record.
func (j *juteWriter) packet() []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(j.b))), j.b...)
}

// juteReader decodes jute records. A record that is too short panics, which fails the test.
type juteReader struct{ b []byte }

func (s *juteReader) take(n int) []byte { v := s.b[:n]; s.b = s.b[n:]; return v }
func (s *juteReader) int32() int32      { return int32(binary.BigEndian.Uint32(s.take(4))) }
func (s *juteReader) int64() int64      { return int64(binary.BigEndian.Uint64(s.take(8))) }
func (s *juteReader) bool() bool        { return s.take(1)[0] != 0 }
func (s *juteReader) text() string      { return string(s.take(max(int(s.int32()), 0))) }

// identity is an identity of a connection or an entry of an access list.
type identity struct {
	perms      int32
	scheme, id string
}

// znode is one node of the tree.
type znode struct {
	data                string
	acl                 []identity
	czxid, mzxid, pzxid int64
	ctime, mtime        int64
	version, creates    int32 // creates counts all children ever created
	owner               int64 // session of an ephemeral node, or ownerContainer
	children            map[string]bool
	watchers            map[*conn]bool
}

func (n *znode) stat(j *juteWriter) {
	owner := n.owner
	if owner == ownerContainer { // the servers do not show that
		owner = 0
	}
	j.int64(n.czxid).int64(n.mzxid).int64(n.ctime).int64(n.mtime).int32(n.version)
	j.int32(n.creates*2 - int32(len(n.children))).int32(0).int64(owner).int32(int32(len(n.data))).int32(int32(len(n.children))).int64(n.pzxid)
}

// fakeSession is the leader's record of a session.
type fakeSession struct {
	id       int64
	password string
	timeout  time.Duration
	expires  time.Time
	timer    *time.Timer
	conn     *conn // the connection that opened or resumed the session last
}

// fake is an in-memory ensemble: sessions, nodes, watches and transactions, by Go's clock, which may be
// virtual. All members have the same nodes at any time. Only the leader knows how long sessions last.
type fake struct {
	t       testing.TB
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	thawed   *sync.Cond
	members  []*server
	nodes    map[string]*znode
	sessions map[int64]*fakeSession
	conns    map[*conn]bool
	zxid     int64
	ids      int64
	min, max time.Duration // bounds of session timeouts
	still    time.Time     // until then no client reads, as in a suspended process
	frozen   bool          // the leader is suspended: it answers nothing and ends no session
	reaper   *time.Timer
	reaps    []string                                    // containers that the reaper will check
	lie      func(op, code int32, out *juteWriter) int32 // changes an answer, and returns its error
	held     int                                         // number of requests that members hold back
	now      time.Time
	steps    int // requests at the current moment
	looped   bool
	asked    int // number of all requests
	ended    bool
}

// server is one member.
type server struct {
	f       *fake
	addr    string
	leads   bool
	alone   bool   // standalone
	words   string // replaces its answer to srvr
	cuts    int    // number of srvr requests to answer with a cut
	version string
	tls     *tls.Config
	refuse  bool        // it refuses connections
	parted  bool        // it follows a leader that it cannot reach, and has not noticed
	talk    func(*wire) // another program listens at its port
	noAuth  bool        // it rejects every login
	holds   int32       // kind of requests to hold back until this is 0
}

// conn is a connection to a member.
type conn struct {
	net.Conn
	far     *wire
	s       *server
	session *fakeSession
	auth    []identity
	paths   map[string]bool // paths that it watches
}

// newFake starts an ensemble of n members, the last of which leads; a single member is standalone. It stops
// with the test.
func newFake(t testing.TB, n int) *fake {
	f := &fake{
		t: t, nodes: make(map[string]*znode), sessions: make(map[int64]*fakeSession), conns: make(map[*conn]bool),
		zxid: 1 << 32, ids: 1 << 56, min: time.Second, max: time.Minute,
	}
	f.thawed = sync.NewCond(&f.mu)
	anyone := []identity{{31, "world", "anyone"}}
	f.nodes["/"] = &znode{acl: anyone, children: make(map[string]bool), watchers: make(map[*conn]bool)}
	for i := range n {
		f.members = append(f.members, &server{f: f, addr: fmt.Sprintf("z%d:2181", i+1), leads: i == n-1, alone: n == 1, version: "3.8.0-1"})
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fake) stop() {
	f.mu.Lock()
	f.ended, f.frozen = true, false
	f.thawed.Broadcast()
	for _, s := range f.sessions {
		s.timer.Stop()
	}
	if f.reaper != nil {
		f.reaper.Stop()
	}
	for c := range f.conns {
		c.far.lost.Store(false)
		c.Close()
		c.far.in.update(func() { c.far.in.closed = true })
	}
	f.mu.Unlock()
	f.running.Wait()
}

// update changes the ensemble.
func (f *fake) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.thawed.Broadcast()
}

// resumeLeader resumes the leader, which at once ends expired sessions.
func (f *fake) resumeLeader() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = false
	for _, s := range slices.Collect(maps.Values(f.sessions)) {
		if !time.Now().Before(s.expires) {
			f.endSession(s)
		}
	}
	f.thawed.Broadcast()
}

func (f *fake) addrs() (all []string) {
	for _, m := range f.members {
		all = append(all, m.addr)
	}
	return all
}

// cutConnections ends all connections.
func (f *fake) cutConnections() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.Close()
	}
}

// requestCount returns the number of requests, including connections.
func (f *fake) requestCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// restore resets the ensemble to an old, empty state, as from a snapshot, and restarts its members.
func (f *fake) restore() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		s.timer.Stop()
	}
	clear(f.sessions)
	f.nodes = map[string]*znode{"/": f.nodes["/"]}
	clear(f.nodes["/"].children)
	f.reaps, f.zxid = nil, 1<<32
	for c := range f.conns {
		c.Close()
	}
}

// swallowTraffic makes all current connections drop their data silently.
func (f *fake) swallowTraffic() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.far.lost.Store(true)
	}
}

// dial connects to the member with this address.
func (f *fake) dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countRequest()
	i := slices.IndexFunc(f.members, func(s *server) bool { return s.addr == addr })
	if i < 0 || f.ended || f.members[i].refuse {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	s := f.members[i]
	near, far := newWires()
	near.pause = f.pauseClient
	if s.talk != nil {
		talk := s.talk
		f.running.Go(func() { talk(far) })
		return near, nil
	}
	c := &conn{Conn: far, far: far, s: s, paths: make(map[string]bool)}
	if s.tls != nil {
		c.Conn = tls.Server(far, s.tls)
	}
	f.conns[c] = true
	f.running.Go(func() {
		f.serveConn(c)
		c.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forgetWatches(c)
		delete(f.conns, c)
	})
	return near, nil
}

// pauseClient blocks the reads of a client while it is suspended.
func (f *fake) pauseClient() {
	f.mu.Lock()
	left := time.Until(f.still)
	f.mu.Unlock()
	time.Sleep(left)
}

// countRequest counts a request. The caller has the mutex.
func (f *fake) countRequest() {
	if now := time.Now(); !now.Equal(f.now) {
		f.now, f.steps = now, 0
	}
	f.asked++
	f.steps++
	if f.steps == maxSteps {
		f.looped = true
		f.t.Errorf("%d requests in one instant: the client asks without a pause", f.steps)
	}
	if f.looped { // end the connection, so that the test ends
		f.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		f.mu.Lock()
	}
}

// serveConn serves one connection until it ends.
func (f *fake) serveConn(c *conn) {
	word := make([]byte, 4)
	if _, err := io.ReadFull(c, word); err != nil {
		return
	}
	if string(word) == "srvr" {
		f.mu.Lock()
		text := f.srvrAnswer(c.s)
		cut := c.s.cuts > 0
		if cut {
			c.s.cuts--
		}
		f.mu.Unlock()
		if !cut {
			io.WriteString(c, text)
		}
		return
	}
	if binary.BigEndian.Uint32(word) > maxPacket {
		return
	}
	hello, err := packet(c, word)
	if err != nil || !f.greetClient(c, hello[4:]) {
		return
	}
	for {
		if _, err := io.ReadFull(c, word); err != nil {
			return
		}
		p, err := packet(c, slices.Clone(word))
		if err != nil || !f.answerRequest(c, p[4:]) {
			return
		}
	}
}

// srvrAnswer returns the answer to srvr.
func (f *fake) srvrAnswer(s *server) string {
	f.awaitState(func() bool { return !f.frozen || !s.leads })
	f.countRequest()
	mode := "follower"
	switch {
	case s.words != "":
		return s.words
	case s.alone:
		mode = "standalone"
	case s.leads:
		mode = "leader"
	}
	return fmt.Sprintf("Zookeeper version: %s, built on 2022\nZxid: %#x\nMode: %s\nNode count: %d\n", s.version, f.zxid, mode, len(f.nodes))
}

// awaitState blocks until ready returns true. The caller has the mutex.
func (f *fake) awaitState(ready func() bool) {
	for !ready() && !f.ended {
		f.thawed.Wait()
	}
}

// awaitLeader waits until the member can reach the leader.
func (f *fake) awaitLeader(s *server) { f.awaitState(func() bool { return !f.frozen && !s.parted }) }

// greetClient opens or resumes a session. It reports whether the connection stays open.
func (f *fake) greetClient(c *conn, hello []byte) bool {
	r := juteReader{hello}
	r.int32()
	seen, asked := r.int64(), time.Duration(r.int32())*time.Millisecond
	id, password := r.int64(), r.text()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countRequest()
	f.awaitLeader(c.s)
	if f.ended || seen > f.zxid || c.s.words != "" && !strings.Contains(c.s.words, "whitelist") {
		return false
	}
	granted := min(max(asked, f.min), f.max)
	s := f.sessions[id]
	if s != nil && s.conn != nil && s.conn.s == c.s { // with any password
		f.forgetWatches(s.conn)
		s.conn.Close()
	}
	switch {
	case id == 0:
		f.zxid++
		f.ids++
		s = &fakeSession{id: f.ids, password: fmt.Sprintf("%016x", f.ids), timeout: granted}
		s.timer = time.AfterFunc(time.Hour, func() { f.expireSession(s) })
		f.sessions[s.id] = s
	case s == nil || s.password != password:
		c.Write((&juteWriter{}).int32(0).int32(0).int64(0).text(string(make([]byte, 16))).bool(false).packet())
		return false
	}
	s.conn, c.session, s.timeout = c, s, granted
	f.touchSession(s)
	c.Write((&juteWriter{}).int32(0).int32(int32(granted / time.Millisecond)).int64(s.id).text(s.password).bool(false).packet())
	return true
}

// touchSession extends the session by its timeout.
func (f *fake) touchSession(s *fakeSession) {
	s.expires = time.Now().Add(s.timeout).Truncate(tick).Add(tick)
	s.timer.Reset(time.Until(s.expires))
}

// expireSession ends a session that was silent for its timeout.
func (f *fake) expireSession(s *fakeSession) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.frozen && !f.ended && f.sessions[s.id] == s && !time.Now().Before(s.expires) {
		f.endSession(s)
	}
}

// endSession deletes a session and its nodes. The caller has the mutex.
func (f *fake) endSession(s *fakeSession) {
	s.timer.Stop()
	delete(f.sessions, s.id)
	f.zxid++
	var ch change
	for path, n := range f.nodes {
		if n.owner == s.id {
			f.removeNode(path, &ch)
		}
	}
	ch.commit()
	for c := range f.conns {
		if c.session == s {
			f.forgetWatches(c)
			c.Close()
		}
	}
}

// forgetWatches removes the watches of a connection.
func (f *fake) forgetWatches(c *conn) {
	for path := range c.paths {
		if n := f.nodes[path]; n != nil {
			delete(n.watchers, c)
		}
	}
	clear(c.paths)
}

// fireEvent sends an event to the connections that watch a node.
func (f *fake) fireEvent(n *znode, path string, event int32) {
	for c := range n.watchers {
		delete(c.paths, path)
		c.Write((&juteWriter{}).int32(-1).int64(-1).int32(0).int32(event).int32(3).text(path).packet())
	}
	clear(n.watchers)
}

// change collects the effects of one transaction on the tree.
type change struct {
	undo    []func() // undo steps for the changes so far
	effects []func() // events to send after the commit
}

// commit sends the events.
func (ch *change) commit() {
	for _, effect := range ch.effects {
		effect()
	}
}

// rollback undoes the changes.
func (ch *change) rollback() {
	for _, back := range slices.Backward(ch.undo) {
		back()
	}
}

// removeNode deletes a node at the current zxid.
func (f *fake) removeNode(path string, ch *change) {
	above, name := splitPath(path)
	n, parent := f.nodes[path], f.nodes[above]
	was := parent.pzxid
	delete(f.nodes, path)
	delete(parent.children, name)
	parent.pzxid = f.zxid
	ch.undo = append(ch.undo, func() {
		f.nodes[path] = n
		parent.children[name], parent.pzxid = true, was
	})
	ch.effects = append(ch.effects, func() {
		f.fireEvent(n, path, 2)
		if parent.owner != ownerContainer || len(parent.children) > 0 {
			return
		}
		f.reaps = append(f.reaps, above)
		if f.reaper == nil {
			f.reaper = time.AfterFunc(reapEvery, f.reapContainers)
		}
	})
}

// reapContainers deletes the containers that are still empty.
func (f *fake) reapContainers() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reaper = nil
	for _, path := range f.reaps {
		if n := f.nodes[path]; n != nil && len(n.children) == 0 {
			f.zxid++
			var ch change
			f.removeNode(path, &ch)
			ch.commit()
		}
	}
	f.reaps = nil
}

func splitPath(path string) (above, name string) {
	i := strings.LastIndexByte(path, '/')
	return cmp.Or(path[:i], "/"), path[i+1:]
}

// answerRequest executes one request. It reports whether the connection stays open.
func (f *fake) answerRequest(c *conn, p []byte) bool {
	r := juteReader{p}
	xid, op := r.int32(), r.int32()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countRequest()
	f.awaitState(func() bool { return !f.frozen || !c.s.leads })
	write := op != opExists && op != opGetData && op != opGetChildren && op != opPing && op != opAuth
	if write {
		f.awaitLeader(c.s)
	}
	if f.ended || !f.conns[c] {
		return false
	}
	s := c.session
	held := c.s.holds == op
	if held {
		f.held++
		f.awaitState(func() bool { return c.s.holds == 0 })
	}
	if held && f.sessions[s.id] == s && s.conn.s == c.s { // even if its connection was closed meanwhile
		f.conns[c] = true
		defer delete(f.conns, c)
	} else if write && op != opSync && f.sessions[s.id] == s && s.conn.s != c.s { // the session has moved
		return false
	}
	if f.sessions[s.id] != s {
		return false
	}
	if s.conn.s == c.s && s.conn != c && !held { // the member has closed the connection
		return false
	}
	if c.s.leads {
		f.touchSession(s)
	} else {
		f.running.Go(func() { // with the member's next ping to the leader
			time.Sleep(tick / 2)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.awaitLeader(c.s)
			if f.sessions[s.id] == s && !f.ended {
				f.touchSession(s)
			}
		})
	}
	out := &juteWriter{}
	code := int32(0)
	switch op {
	case opAuth:
		r.int32()
		scheme, id := r.text(), r.text()
		if scheme != "digest" || c.s.noAuth {
			c.Write((&juteWriter{}).int32(xid).int64(0).int32(errAuthFailed).packet())
			return false
		}
		c.auth = append(c.auth, identity{0, scheme, id})
		c.Write((&juteWriter{}).int32(xid).int64(0).int32(0).packet())
		return true
	case opPing:
	case opSync:
		out.text(r.text())
	case opExists, opGetData, opGetChildren:
		code = f.answerRead(c, op, r.text(), r.bool(), out)
	case opClose:
		c.session = nil // the connection ends after the answer, not with the session
		f.endSession(s)
		c.Write((&juteWriter{}).int32(xid).int64(f.zxid).int32(0).packet())
		return false
	case opMulti:
		f.zxid++
		f.applyTransaction(c, &r, out)
	default:
		f.zxid++
		var ch change
		if code = f.applyChange(c, readOrder(op, &r), out, &ch); code == 0 {
			ch.commit()
		}
	}
	if f.lie != nil {
		code = f.lie(op, code, out)
	}
	if code == errCut {
		return false
	}
	if code != 0 {
		out = &juteWriter{}
	}
	head := (&juteWriter{}).int32(xid).int64(f.zxid).int32(code)
	head.b = append(head.b, out.b...)
	c.Write(head.packet())
	return true
}

// answerRead answers a request that changes nothing.
func (f *fake) answerRead(c *conn, op int32, path string, watch bool, out *juteWriter) int32 {
	n := f.nodes[path]
	switch {
	case n == nil:
		return errNoNode
	case op != opExists && !c.isAllowed(n, permRead):
		return errNoAuth
	}
	if watch && op != opGetData {
		f.t.Errorf("the fake has no watch for request %d", op)
	}
	if watch {
		n.watchers[c], c.paths[path] = true, true
	}
	switch op {
	case opGetData:
		out.text(n.data)
	case opGetChildren:
		out.int32(int32(len(n.children)))
		for name := range n.children {
			out.text(name)
		}
	}
	n.stat(out)
	return 0
}

// isAllowed reports whether the connection has a permission on a node.
func (c *conn) isAllowed(n *znode, perm int32) bool {
	return slices.ContainsFunc(n.acl, func(a identity) bool {
		return a.perms&perm != 0 && (a.scheme == "world" || slices.Contains(c.auth, identity{0, a.scheme, a.id}))
	})
}

// order is one change that a client requests.
type order struct {
	op             int32
	path, data     string
	acl            []identity
	flags, version int32
}

func readOrder(op int32, r *juteReader) order {
	o := order{op: op, path: r.text()}
	switch op {
	case opCreate, opCreate2, opContainer:
		o.data = r.text()
		for range r.int32() {
			o.acl = append(o.acl, identity{r.int32(), r.text(), r.text()})
		}
		o.flags = r.int32()
		return o
	case opSetData:
		o.data = r.text()
	}
	o.version = r.int32()
	return o
}

// applyChange executes one change at the current zxid.
func (f *fake) applyChange(c *conn, o order, out *juteWriter, ch *change) int32 {
	switch o.op {
	case opCreate, opCreate2, opContainer:
		return f.createNode(c, o, out, ch)
	case opDelete:
		return f.deleteNode(c, o, ch)
	case opSetData:
		n := f.nodes[o.path]
		if code := c.checkNode(n, permWrite, o.version); code != 0 {
			return code
		}
		was := *n
		ch.undo = append(ch.undo, func() { n.data, n.version, n.mzxid, n.mtime = was.data, was.version, was.mzxid, was.mtime })
		ch.effects = append(ch.effects, func() { f.fireEvent(n, o.path, 3) })
		n.data, n.mzxid, n.mtime = o.data, f.zxid, time.Now().UnixMilli()
		n.version++
		n.stat(out)
		return 0
	case opCheck:
		return c.checkNode(f.nodes[o.path], permRead, o.version)
	}
	f.t.Errorf("the fake does not know request %d", o.op)
	return -6
}

// checkNode returns the error code for a request about a node with this version.
func (c *conn) checkNode(n *znode, perm, version int32) int32 {
	switch {
	case n == nil:
		return errNoNode
	case !c.isAllowed(n, perm):
		return errNoAuth
	case version >= 0 && version != n.version:
		return errBadVersion
	}
	return 0
}

func (f *fake) createNode(c *conn, o order, out *juteWriter, ch *change) int32 {
	acl := c.fixACL(o.acl)
	if acl == nil {
		return errInvalidACL
	}
	above, name := splitPath(o.path)
	parent := f.nodes[above]
	switch {
	case parent == nil:
		return errNoNode
	case !c.isAllowed(parent, permCreate):
		return errNoAuth
	}
	path := o.path
	if o.flags == 2 || o.flags == 3 {
		number := fmt.Sprintf("%010d", parent.creates)
		path, name = path+number, name+number
	}
	switch {
	case f.nodes[path] != nil:
		return errNodeExists
	case parent.owner != 0 && parent.owner != ownerContainer:
		return errNoChildren
	}
	now := time.Now().UnixMilli()
	n := &znode{
		data: o.data, acl: acl, czxid: f.zxid, mzxid: f.zxid, pzxid: f.zxid, ctime: now, mtime: now,
		children: make(map[string]bool), watchers: make(map[*conn]bool),
	}
	switch {
	case o.op == opContainer:
		n.owner = ownerContainer
	case o.flags == 1 || o.flags == 3:
		n.owner = c.session.id
	}
	was := *parent
	ch.undo = append(ch.undo, func() {
		delete(f.nodes, path)
		delete(parent.children, name)
		parent.creates, parent.pzxid = was.creates, was.pzxid
	})
	f.nodes[path] = n
	parent.children[name], parent.pzxid = true, f.zxid
	if parent.creates < math.MaxInt32 { // the last number is given repeatedly
		parent.creates++
	}
	out.text(path)
	if o.op != opCreate {
		n.stat(out)
	}
	return 0
}

// fixACL replaces the scheme auth by the creator's identities; nil: the list is invalid.
func (c *conn) fixACL(acl []identity) (fixed []identity) {
	for _, a := range acl {
		switch {
		case a.scheme == "world":
			fixed = append(fixed, a)
		case a.scheme == "auth" && len(c.auth) > 0:
			for _, me := range c.auth {
				fixed = append(fixed, identity{a.perms, me.scheme, me.id})
			}
		default:
			return nil
		}
	}
	return fixed
}

func (f *fake) deleteNode(c *conn, o order, ch *change) int32 {
	above, _ := splitPath(o.path)
	if code := c.checkNode(f.nodes[above], permDelete, -1); code != 0 {
		return code
	}
	n := f.nodes[o.path]
	switch {
	case n == nil:
		return errNoNode
	case o.version >= 0 && o.version != n.version:
		return errBadVersion
	case len(n.children) > 0:
		return errNotEmpty
	}
	f.removeNode(o.path, ch)
	return 0
}

// applyTransaction executes all operations of a transaction or none.
func (f *fake) applyTransaction(c *conn, r *juteReader, out *juteWriter) {
	var ch change
	var parts []order
	var answers []juteWriter
	failed := -1 // index of the failed operation
	var why int32
	for {
		op, done := r.int32(), r.bool()
		r.int32()
		if done {
			break
		}
		if op == opCreate2 { // the servers treat it as a create
			op = opCreate
		}
		o, answer := readOrder(op, r), juteWriter{}
		if failed < 0 {
			if why = f.applyChange(c, o, &answer, &ch); why != 0 {
				failed = len(parts)
			}
		}
		parts, answers = append(parts, o), append(answers, answer)
	}
	if failed < 0 {
		ch.commit()
	} else {
		ch.rollback()
	}
	for i, o := range parts {
		code := why
		switch {
		case failed < 0:
			out.int32(o.op).bool(false).int32(0)
			out.b = append(out.b, answers[i].b...)
			continue
		case i < failed:
			code = 0
		case i > failed:
			code = errRuntime
		}
		out.int32(-1).bool(false).int32(code).int32(code)
	}
	out.int32(-1).bool(true).int32(-1)
}
