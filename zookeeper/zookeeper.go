// Package zookeeper keeps locks in a ZooKeeper ensemble, version 3.5.3 or newer. It is for programs whose locks must
// survive the loss of servers, and for programs that have an ensemble anyway.
//
// # What is not promised
//
// A lease does not exclude a holder that is suspended for longer than its TTL and then continues without a check.
// Fencing tokens do.
//
// A TTL is the timeout of a session, and the servers limit it to between two and twenty ticks: 4 s to 40 s by default.
// A TTL that they would change is an error. They end sessions at a tick, so up to 2 s late. A lease cannot change its
// TTL, outlast its release, or be continued by another process.
//
// An ensemble that is restored from an old snapshot begins again with old transactions, and so with old tokens.
//
// # How it works
//
// Each attempt to acquire a lock has its own ephemeral node in the folder of the lock. The servers number the nodes,
// and the lowest has the lock. The other attempts wait in the order of their numbers. Each watches the node before its
// own, and waits until that node is deleted.
//
//	        create node           the node before is gone
//	start ─────────────> in line ─────────────────────────> look ──> granted
//	  ▲                   │   ▲                              │ │
//	  │ no answer: is it  │   └──────────────────────────────┘ │
//	  └─ there?  ─────────┘              another one before    │
//	  ▲                                                        │
//	  └────────────────────────────────────────────────────────┘
//	                        the own node is gone
//
// A look is a transaction that checks that the client's own node still exists. So no client takes the lock by a node
// that was deleted during the wait. A release deletes the node of its own attempt and no other, however often it is
// repeated, because no two nodes have the same name. The name of a node has the name of its attempt. So if the creation
// of a node gets no answer, the driver finds the node again, and uses or deletes it.
//
// Tokens come from the transaction that created the node. Each node has a block of tokens.
//
// # Sessions
//
// All leases with the same TTL share a session, because a TTL in ZooKeeper belongs to a session, and because the
// servers allow few connections per machine. So they also end together if the session ends. When a session has 1,000
// locks and waiters, the driver begins another: the servers do not survive the end of a session that has too many
// nodes. The driver closes a session that no lock needs.
//
// A holder's trust in a lease counts from before a transaction was sent to the leader, which the driver searches for
// and connects to. Answers of another member prove less: it answers pings even when it cannot reach the leader, which
// then ends the session early. If the driver can reach no other member, each renewal opens the connection anew, because
// the member asks the leader about a new connection.
//
// # Late requests
//
// A request may be executed after its client and its connection have ended. The servers execute only requests of a
// session's last connection: a member closes the connection before it, and the leader rejects requests that come
// through another member. The driver sees the effect of earlier requests: it reads its node over the new connection,
// after a sync. One case is left: when a session returns to a member, also by a late connect request, the member still
// executes what it has just read from the connection before. So if an attempt does not find its node, it continues
// under another name, and for ten minutes the driver deletes nodes with the earlier name: at each new connection, and
// six times per TTL. A release and a force-release delete the node of one attempt, whose name is never used again, at
// whatever time they are executed. A late renewal changes nothing: it prolongs the session, and trust counts from
// before the renewal was sent. A late connect request moves the session to a connection that no longer exists. The
// driver then loses its own connection, and reconnects to the session.
package zookeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

const (
	minTTL      = time.Second
	granularity = time.Millisecond // of session timeouts
	// batchSize bounds the grants per renewal request.
	batchSize = 64
	// room bounds the concurrent requests of claims and releases. The members write concurrent requests to
	// disk together, and renewals queue behind them on their connections.
	room = 32
	// maxUsers bounds the nodes of a session. The servers write all their paths into the transaction that ends
	// the session. If that is longer than a packet may be, twice jute.maxbuffer or 2 MB, no member can read
	// it: the ensemble goes down and does not start again (ZOOKEEPER-4306). This number of the longest paths
	// stays below that.
	maxUsers = 1000
)

// Options configure a Driver. The zero value works.
type Options struct {
	// Path is the node below which the locks are. It separates users of one ensemble, even if one path
	// is below another. It is created when needed. No part of it begins with "lock:". Default
	// "/holdfast".
	Path string
	// TLS, if set, is the configuration for TLS connections to the members.
	TLS *tls.Config
	// Username and Password identify the client by the scheme digest; set both or neither.
	// Only this user then has access to the nodes that the client creates. ZooKeeper does not check a
	// password: with a wrong one the client is another user, without rights.
	Username, Password string
	// NoCheck skips the first request, so that a driver can be opened even for an ensemble that
	// rejects this client: for Limits and Diagnose.
	NoCheck bool

	secrets  []string                                                 // files that the URL names
	renewTLS func(*tls.Config) (*tls.Config, error)                   // reads the TLS files of the URL again; nil: it names none
	dial     func(ctx context.Context, addr string) (net.Conn, error) // nil: dialTCP
}

// Driver keeps locks in one ensemble. It is safe for concurrent use.
type Driver struct {
	root     string
	auth     string
	acl      acl
	members  []*member
	owners   *driverkit.Owners
	calls    *driverkit.Calls
	states   *driverkit.States
	lane     *driverkit.Lane // turns for requests of claims and releases
	links    sync.WaitGroup  // goroutines of the sessions
	maxUsers int             // bounds the users of a session; tests lower it
	secrets  []string        // files

	mu       sync.Mutex // guards the fields below
	sessions map[time.Duration][]*session
	holds    map[string]*hold // by owner
	alert    func(owner, why string)
	split    error // the members belong to two ensembles; nil: not known to
}

// hold is a node that has a lock. The session may continue for other locks, so the driver itself deletes the
// node if it was not renewed within its TTL.
type hold struct {
	s     *session
	path  string
	until time.Time // end of trust
	lapse *time.Timer

	heeded bool          // a goroutine watches the node
	over   chan struct{} // closed when the hold is forgotten
}

func newDriver(members []string, opts *Options) (*Driver, error) {
	root := cmp.Or(opts.Path, "/holdfast")
	err := cmp.Or(driverkit.CheckMembers(members, "ensemble", opts.Username, opts.Password), checkPath(root))
	if err == nil && strings.Contains(opts.Username, ":") {
		err = fmt.Errorf("%w: a user name of ZooKeeper may not have a colon; choose another user", driver.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	d := &Driver{
		root: root, acl: everybody, owners: driverkit.NewOwners(), secrets: opts.secrets,
		calls: driverkit.NewCalls(), states: driverkit.NewStates(members...),
		maxUsers: maxUsers, sessions: make(map[time.Duration][]*session), holds: make(map[string]*hold),
	}
	d.lane = driverkit.NewLane(d.states, room)
	if opts.Username != "" {
		d.auth, d.acl = opts.Username+":"+opts.Password, creator
	}
	over := opts.dial
	if over == nil {
		over = dialTCP
	}
	for i, name := range members {
		d.members = append(d.members, &member{name: name, place: i, tls: opts.TLS, renewTLS: opts.renewTLS, over: over, states: d.states})
	}
	d.calls.Go(d.watchMembers)
	return d, nil
}

// Limits implements driver.Driver. The servers may grant less: see the package comment.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: granularity, Token: true, Order: true}
}

// Close implements driver.Driver. Nodes of held locks stay until their TTL is over.
func (d *Driver) Close() error {
	if !d.calls.Close() {
		return nil
	}
	d.mu.Lock()
	held := make(map[*session]bool)
	for _, h := range d.holds {
		h.lapse.Stop()
		held[h.s] = true
	}
	for _, some := range d.sessions {
		for _, s := range some {
			d.links.Go(func() { s.close(held[s]) })
		}
	}
	d.mu.Unlock()
	d.links.Wait()
	return nil
}

// sessionFor returns a session with room for locks with this TTL. The caller gives it back by releaseSession.
func (d *Driver) sessionFor(ttl time.Duration) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	some := d.sessions[ttl]
	i := slices.IndexFunc(some, func(s *session) bool { return s.users < d.maxUsers })
	if i < 0 {
		i = len(some)
		d.sessions[ttl] = append(some, d.newSession(ttl))
	}
	s := d.sessions[ttl][i]
	s.users++
	return s
}

func (d *Driver) releaseSession(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.users--
	s.idle = time.Now()
}

// forgetSession removes a session that is over.
func (d *Driver) forgetSession(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropSession(s)
}

// dropSession removes a session from those that new users may join; false: it was not among them. The caller
// has the mutex.
func (d *Driver) dropSession(s *session) bool {
	some := d.sessions[s.key]
	i := slices.Index(some, s)
	switch {
	case i < 0:
		return false
	case len(some) == 1:
		delete(d.sessions, s.key)
	default:
		d.sessions[s.key] = slices.Delete(some, i, i+1)
	}
	return true
}

// retireSession ends a session that no lock has needed for a while, and reports whether it did.
func (d *Driver) retireSession(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.users > 0 || time.Since(s.idle) < idleTime || !d.dropSession(s) {
		return false
	}
	d.links.Go(func() { s.close(false) })
	return true
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	d.mu.Lock()
	split := d.split
	d.mu.Unlock()
	if split != nil {
		return driver.Grant{}, d.callerError(split)
	}
	req.TTL = (req.TTL + granularity - 1).Truncate(granularity)
	c := &claim{d: d, req: req, wait: driverkit.Wait{Report: req.OnObstacle}}
	if err := c.acquireLock(ctx); err != nil {
		c.abandon()
		return driver.Grant{}, err
	}
	return c.newGrant(), nil
}

// Renew implements driver.Driver. It retries until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	if err := d.calls.Enter(); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer d.calls.Leave()
	together := make(map[*session][]int) // indices of grants
	paths := make([]string, len(grants))
	d.mu.Lock()
	for i, g := range grants {
		h := d.holds[g.Owner]
		if h == nil { // released or lost
			out[i].Err = driver.ErrLost
			continue
		}
		together[h.s], paths[i] = append(together[h.s], i), h.path
	}
	d.mu.Unlock()
	var all sync.WaitGroup
	for s, mine := range together {
		for some := range slices.Chunk(mine, batchSize) {
			all.Go(func() { d.renewGrants(ctx, s, some, grants, paths, out) })
		}
	}
	all.Wait()
	for i, g := range grants {
		if out[i].Err == nil && !d.extendHold(g.Owner, out[i].TrustedUntil) {
			out[i] = driver.Renewal{Err: driver.ErrLost}
		} else if errors.Is(out[i].Err, driver.ErrLost) {
			d.forgetHold(g.Owner)
		}
	}
	return out
}

// renewGrants renews grants of one session.
func (d *Driver) renewGrants(ctx context.Context, s *session, some []int, grants []driver.Grant, paths []string, out []driver.Renewal) {
	ctx, cancel := context.WithTimeout(ctx, s.ttl)
	defer cancel()
	mine, folders := make([]string, len(some)), make([]*request, len(some))
	for i, n := range some {
		mine[i] = paths[n]
	}
	var base time.Time
	var exists []bool
	err := driverkit.RetryUnanswered(ctx, func() (err error) {
		for i := range folders {
			folders[i] = existsRequest(path.Dir(mine[i]))
		}
		beside, heeds := slices.Clone(folders), []string{}
		for i, n := range some {
			if r := d.watchHold(grants[n].Owner); r != nil {
				beside, heeds = append(beside, r), append(heeds, mine[i])
			}
		}
		if base, exists, err = s.confirmNodes(ctx, mine, beside...); err != nil {
			for _, path := range heeds { // the servers may have set no watch
				s.fireWatches(path)
			}
		}
		return err
	})
	if errors.Is(err, errOver) {
		err = errEnded
	}
	for i, n := range some {
		switch {
		case err != nil:
			out[n].Err = err
		case !exists[i]:
			out[n].Err = driver.ErrLost
		default:
			out[n].TrustedUntil = driverkit.TrustEnd(base, s.ttl)
			if folders[i].err == nil {
				out[n].Waiters = max(int(folders[i].reply.stat().children)-1, 0)
			}
		}
	}
}

// Release implements driver.Driver. It repeats the release in the background until it is confirmed or the
// session is over.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	d.mu.Lock()
	h := d.holds[g.Owner]
	d.mu.Unlock()
	switch {
	case keep > 0:
		return fmt.Errorf("%w: ZooKeeper keeps no lock beyond its release", driver.ErrUnsupported)
	case h == nil:
		return nil // released before
	}
	return d.calls.FinishRelease(ctx, d.states, d.lane, func(begun func()) error {
		err := h.s.deleteNode(d.calls.Work, h.path, begun)
		if err == nil {
			d.forgetHold(g.Owner)
		}
		return err
	})
}

// addHold records that g has a lock, until forgetHold.
func (d *Driver) addHold(g driver.Grant, s *session, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := &hold{s: s, path: path, until: g.TrustedUntil, over: make(chan struct{})}
	h.lapse = time.AfterFunc(time.Until(h.until), func() { d.expireHold(g.Owner) })
	d.holds[g.Owner] = h
}

// extendHold records a new end of trust; false: the hold is over.
func (d *Driver) extendHold(owner string, until time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.holds[owner]
	if h == nil {
		return false
	}
	h.until = until
	h.lapse.Reset(time.Until(until))
	return true
}

// expireHold deletes the node of a hold that was not renewed in time.
func (d *Driver) expireHold(owner string) {
	d.mu.Lock()
	h := d.holds[owner]
	over := h != nil && !time.Now().Before(h.until)
	if over {
		delete(d.holds, owner)
		close(h.over)
	}
	d.mu.Unlock()
	if !over || d.calls.Enter() != nil {
		return
	}
	defer d.calls.Leave()
	defer d.releaseSession(h.s)
	h.s.deleteNode(d.calls.Work, h.path, func() {})
}

// forgetHold removes a hold.
func (d *Driver) forgetHold(owner string) {
	d.mu.Lock()
	h := d.holds[owner]
	delete(d.holds, owner)
	d.mu.Unlock()
	if h != nil {
		h.lapse.Stop()
		close(h.over)
		d.releaseSession(h.s)
	}
}

// Nodes implements driver.Notifier.
func (d *Driver) Nodes() []driver.NodeEvent { return d.states.Nodes() }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) { d.states.Notify(fn) }

// refusedError returns the error for a request that the servers reject, with its fix. The next connection
// shows whether the session is over.
func (d *Driver) refusedError(err error) error {
	switch {
	case errors.Is(err, codeExpired), errors.Is(err, codeMoved):
		return d.states.Unavailable(err)
	case errors.Is(err, codeNoAuth):
		return driverkit.PermanentError{Err: fmt.Errorf("%w: %w; correct user and password, or give the user all permissions (cdrwa) on the path of the locks",
			driver.ErrAuth, err)}
	case errors.Is(err, codeAuthFailed), errors.Is(err, codeInvalidACL):
		return driverkit.PermanentError{Err: fmt.Errorf("%w: %w; correct user and password, and let the servers accept the scheme digest", driver.ErrAuth, err)}
	case errors.Is(err, codeUnimplemented):
		return driverkit.PermanentError{Err: fmt.Errorf("%w; ZooKeeper 3.5.3 or newer is needed", err)}
	case errors.Is(err, codeNoChildren):
		return driverkit.PermanentError{Err: fmt.Errorf("%w; take another path for the locks", err)}
	case errors.Is(err, codeQuota):
		return driverkit.PermanentError{Err: fmt.Errorf("%w; raise it for the path of the locks", err)}
	}
	if _, unknown := errors.AsType[code](err); unknown { // such as a request that timed out within the ensemble
		return d.states.Unavailable(err)
	}
	return err
}

// checkPath returns an error if a path is unfit for locks.
func checkPath(at string) error {
	odd := func(r rune) bool {
		return r < ' ' || r >= 0x7f && r <= 0x9f || r == 0xfffd || r >= 0xd800 && r <= 0xf8ff
	}
	if !strings.HasPrefix(at, "/") || path.Clean(at) != at || at == "/" || strings.ContainsFunc(at, odd) {
		return fmt.Errorf("%w: %q is not a path for locks; write one like /holdfast, without an empty part, dots or control characters", driver.ErrInvalid, at)
	}
	if at == "/zookeeper" || strings.HasPrefix(at, "/zookeeper/") {
		return fmt.Errorf("%w: %q is not a path for locks, as /zookeeper is the servers' own; write one like /holdfast", driver.ErrInvalid, at)
	}
	if strings.Contains(at, "/"+mark) {
		return fmt.Errorf("%w: %q is not a path for locks, as nodes whose name begins with %q are locks; write one like /holdfast", driver.ErrInvalid, at, mark)
	}
	return nil
}
