// Package etcd keeps locks in an etcd cluster, version 3.4 or newer. It is for programs whose locks must survive the
// loss of servers, and for programs that have a cluster anyway.
//
// # What is not promised
//
// A lease does not exclude a holder that is suspended for longer than its TTL and then continues without a check.
// Fencing tokens do.
//
// etcd counts leases in whole seconds and grants none under 2 s. A cluster without a leader renews no lease, and an
// election takes a second or two: a TTL of 5 s outlasts it, a TTL of 2 s may not. A cluster that is restored from an
// old snapshot begins again with old revisions, and so with old tokens.
//
// # How it works
//
// Each attempt to acquire a lock has its own key, under its own etcd lease. The oldest key has the lock. The other
// attempts wait in the order in which their keys were created. Each watches the key before its own, and waits until
// that key is deleted.
//
//	        lease          create key            the key before is gone
//	start ────────> leased ──────────> in line ────────────────────────> look ──> granted
//	  ▲                                 ▲  │ ▲                            │ │
//	  │                                 └──┘ └────────────────────────────┘ │
//	  │                               keep alive       another one before   │
//	  └─────────────────────────────────────────────────────────────────────┘
//	                             the own key is gone
//
// A look is a transaction that reads whether the client's own key still exists and which keys are before it. So no
// client takes the lock by a key that has expired during the wait. A release deletes the key of its own attempt and no
// other, however often it is repeated. Then the next lock uses the etcd lease. If a request without an answer may still
// create a key under the lease, the driver revokes the lease, as it does after a failed attempt. A late request to
// create the key then finds no lease and does nothing.
//
// An adoption changes the key, if no other client has changed it since the read. The key keeps its place and its lease.
// So an adoption that is executed after its client has ended takes the lock from no later holder, and ends it no sooner
// than the last renewal has promised.
//
// Tokens come from the revision that created the key. Each key has a block of tokens, with room for holders that adopt
// the lease. The tokens begin at the time (tokens.go).
//
// A holder's trust in a lease counts from before its last renewal was sent. A renewal also reads whether the key
// exists: old servers confirm a lease that they have just revoked, and operators delete keys. The read must have the
// same term as the renewal: a leader that was suspended confirms renewals until it learns of its successor, which does
// not know of them.
//
// The driver has a connection to each member and chooses the member for each request. It prefers the leader, to which
// the others would forward requests. Watches are spread over the members. If a request gets no answer within a part of
// the TTL, it goes to the next member. The driver asks all members for their state every two seconds, so no wait
// depends on a dead watch. It replaces a connection on which neither that answer nor anything else arrives (link.go).
package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/keepalive"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

const (
	minTTL = 2 * time.Second
	// batch bounds the grants per renewal request, and so the memory that its answer may take. A transaction
	// may have 128 operations.
	batch = 32
	// room bounds the concurrent requests that acquire or release locks. The members write concurrent requests
	// to disk together.
	room = 64
)

// Options configure a Driver. The zero value works.
type Options struct {
	// Prefix begins the names of all keys. It separates users of one cluster, even if one prefix
	// begins with another. It gets a slash at its end if it has none, and has no comma. A user of etcd
	// needs permission to read and write the keys that begin with it. Default "holdfast/".
	Prefix string
	// TLS, if set, is the configuration for TLS connections to the members.
	TLS *tls.Config
	// Username and Password are the login; set both or neither.
	Username, Password string
	// NoCheck skips the first request, so that a driver can be opened even for a cluster that
	// rejects this client: for Limits and Diagnose.
	NoCheck bool

	secrets   []string                               // files that the URL names
	renewTLS  func(*tls.Config) (*tls.Config, error) // reads the files that the URL names
	keepAlive keepalive.ClientParameters
	dial      func(ctx context.Context, addr string) (net.Conn, error) // nil: over the network
}

// Driver keeps locks in one cluster. It is safe for concurrent use.
type Driver struct {
	prefix string
	nodes  []*node
	owners *driverkit.Owners

	calls  *driverkit.Calls
	states *driverkit.States
	lane   *driverkit.Lane // turns for requests that acquire or release locks
	union  *clusterIDs
	loans  loans
	base   tokenBase

	secrets []string // files

	mu    sync.Mutex // guards the fields below
	alert func(owner, why string)
	hears bool // the watch for messages of Force was started
}

func newDriver(members []string, opts *Options) (*Driver, error) {
	if err := driverkit.CheckMembers(members, "cluster", opts.Username, opts.Password); err != nil {
		return nil, err
	}
	d := &Driver{prefix: opts.Prefix, owners: driverkit.NewOwners(), calls: driverkit.NewCalls(), states: driverkit.NewStates(members...), secrets: opts.secrets}
	d.lane = driverkit.NewLane(d.states, room)
	d.union = &clusterIDs{ids: make([]uint64, len(members))}
	switch {
	case d.prefix == "":
		d.prefix = "holdfast/"
	case strings.Contains(d.prefix, mark):
		return nil, fmt.Errorf("%w: the prefix %q has a comma, which ends a name; leave it out", driver.ErrInvalid, d.prefix)
	case !strings.HasSuffix(d.prefix, "/"):
		d.prefix += "/"
	}
	for i, name := range members {
		n, err := newNode(d.calls.Work, i, name, d.folderOf("holdfast"), opts, d.union)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("%w: %s: %w", driver.ErrInvalid, name, err)
		}
		d.nodes = append(d.nodes, n)
	}
	for _, n := range d.nodes {
		d.calls.Go(func() { d.watchMember(n) })
	}
	return d, nil
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: time.Second, Token: true, Order: true, MinHold: true}
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
	if err := d.calls.Enter(); err == nil {
		for _, l := range d.loans.drain() {
			d.abandonLease(l)
		}
		d.calls.Leave()
	}
	if !d.calls.Close() {
		return nil
	}
	for _, n := range d.nodes {
		n.close()
	}
	return nil
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
	c := &claim{d: d, req: req, wait: driverkit.Wait{Report: req.OnObstacle}}
	if err := c.acquireLock(ctx); err != nil {
		c.giveUp()
		return driver.Grant{}, err
	}
	d.startAlerts()
	return c.newGrant(), nil
}

// Renew implements driver.Driver. It retries until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	var all sync.WaitGroup
	for i := 0; i < len(grants); i += batch {
		end := min(i+batch, len(grants))
		all.Go(func() { d.renewGrants(ctx, grants[i:end], out[i:end]) })
	}
	all.Wait()
	return out
}

func (d *Driver) renewGrants(ctx context.Context, grants []driver.Grant, out []driver.Renewal) {
	leases, gets, shortest := make([]clientv3.LeaseID, len(grants)), make([]clientv3.Op, len(grants)), grants[0].TTL
	for i, g := range grants {
		leases[i] = parseOwner(g.Owner).lease
		gets[i] = d.getFirst(g.Key)
		shortest = min(shortest, g.TTL)
	}
	ctx, cancel := context.WithTimeout(ctx, shortest)
	defer cancel()
	var r renewal
	err := d.callUntilAnswer(ctx, shortest, renewRequest(leases, gets, &r))
	for i, g := range grants {
		if err != nil {
			out[i].Err = err
		} else if l, ttl := queueFrom(r.seen, i), r.ttls[leases[i]]; l.first.owner != g.Owner || ttl <= 0 {
			out[i].Err = driver.ErrLost
		} else {
			out[i] = driver.Renewal{TrustedUntil: driverkit.TrustEnd(r.sent, min(ttl, g.TTL)), Waiters: l.waiterCount()}
		}
	}
}

// Release implements driver.Driver. It repeats the release in the background until it is confirmed or the lock
// has expired.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	return d.calls.FinishRelease(ctx, d.states, d.lane, func(begun func()) error { return d.freeLock(g, keep, begun) })
}

// freeLock deletes the key of g, if g still owns it. Then it makes the lease spare, or revokes it. To keep the
// lock for a while, it moves the key to another lease, which is not renewed.
//
// It does not simply revoke the lease: an adopted lease has another holder, and a spare lease another lock.
func (d *Driver) freeLock(g driver.Grant, keep time.Duration, begun func()) error {
	was := parseOwner(g.Owner)
	ctx, cancel := context.WithTimeout(d.calls.Work, g.TTL)
	defer cancel()
	key, done := d.folderOf(g.Key)+was.place, false
	var do request
	switch {
	case keep > 0:
		kept, err := d.keepLock(ctx, g, keep, begun)
		if err != nil || kept.KeyBytes() == nil {
			return err
		}
		do = changeRequest(d.folderOf(g.Key), was, kept, &done)
	case driver.IsAdoptable(g.Owner):
		do = changeRequest(d.folderOf(g.Key), was, clientv3.OpDelete(key), &done)
	default: // only its holder changes the key, so no transaction needs to compare it
		do = func(ctx context.Context, c *clientv3.Client) error {
			resp, err := c.Delete(ctx, key)
			done = err == nil && resp.Deleted > 0
			return err
		}
	}
	err := d.callInTurn(ctx, g.TTL, begun, do)
	if done && !d.loans.giveBack(was.lease) {
		d.abandonLease(loan{id: was.lease, ttl: g.TTL})
	}
	return err
}

// keepLock returns the operation that moves the key of g to another lease with this TTL, or none if g no
// longer owns the key. After an error it revokes neither lease: the key may be under either.
func (d *Driver) keepLock(ctx context.Context, g driver.Grant, ttl time.Duration, begun func()) (put clientv3.Op, err error) {
	var l waitQueue
	var last loan
	if err := d.callInTurn(ctx, g.TTL, begun, d.queueRequest(g.Key, &l)); err != nil || l.first.owner != g.Owner {
		return put, err
	}
	if err := d.callInTurn(ctx, g.TTL, begun, grantRequest(max(ttl, minTTL), &last)); err != nil {
		return put, err
	}
	says := l.first.value
	says.Kept, says.Adoptable = true, false
	return clientv3.OpPut(l.first.key, says.text(), clientv3.WithLease(last.id)), nil
}

// changeRequest applies do to a key of a folder if the key is unchanged since was, and stores in done whether
// it did.
func changeRequest(folder string, was id, do clientv3.Op, done *bool) request {
	return func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).If(was.compareUnchanged(folder)).Then(do).Commit()
		*done = err == nil && resp.Succeeded
		return err
	}
}

// Detach implements driver.Adopter. The lease may get another holder, so it must never become spare.
func (d *Driver) Detach(g driver.Grant) { d.loans.forget(parseOwner(g.Owner).lease) }

// Adopt implements driver.Adopter.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	defer context.AfterFunc(d.calls.Alive, cancel)()
	c := &claim{d: d, req: driver.Request{Key: g.Key, TTL: g.TTL, Adoptable: true}, loose: true}
	if err := c.adoptKey(ctx, g); err != nil {
		if c.revision != 0 { // the claim has the lock
			d.calls.Go(func() { d.freeLock(c.newGrant(), 0, func() {}) })
		}
		if d.calls.Alive.Err() != nil {
			err = driver.ErrClosed
		}
		return driver.Grant{}, err
	}
	d.startAlerts()
	return c.newGrant(), nil
}
