// Package etcd keeps locks in an etcd cluster, version 3.4 or newer: for programs whose
// locks have to survive the loss of servers, and for those that have a cluster anyway.
//
// # What is not promised
//
// No lease excludes a holder that was stopped for longer than its TTL and goes on without
// looking; fencing tokens do.
//
// etcd counts leases in whole seconds and grants none under 2 s. A cluster without a leader
// renews nothing, and an election takes a second or two: a TTL of 5 s outlasts it, one of
// 2 s may not. A cluster that is restored from an old snapshot begins again with old
// revisions, and so with old tokens.
//
// # How it works
//
// Each attempt at a lock is a key of its own under a lease of its own. The key that was
// created first has the lock. The others wait in the order of their creation, each until the
// key before it is deleted, which a watch tells.
//
//	        lease          create key            the key before is gone
//	start ────────> leased ──────────> in line ────────────────────────> look ──> granted
//	  ▲                                 ▲  │ ▲                            │ │
//	  │                                 └──┘ └────────────────────────────┘ │
//	  │                               keep alive       another one before   │
//	  └─────────────────────────────────────────────────────────────────────┘
//	                             the own key is gone
//
// A look reads in one transaction that the own key still stands and who is before it, so
// that nobody takes the lock for a key that has lapsed during the wait. A release revokes
// the lease, and with it deletes this attempt's key and no other, however often it is
// repeated. That is also how an attempt ends that has failed: a request to create the key
// that arrives later finds no lease, and does nothing.
//
// Tokens come from the revision that created the key, with room for a block of tokens, and
// for further holders that adopt the lease.
//
// Trust in a lease is counted from before its last renewal was sent. A renewal also reads
// that the key stands: old servers confirm a lease that they have just revoked, and people
// delete keys.
//
// The driver has a connection to each member, and decides itself which one it asks. A
// request without an answer goes to the next member after a part of the TTL, and the
// members are asked for their state every two seconds, so that no wait depends on a watch
// that has gone dead.
package etcd

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	minTTL = 2 * time.Second
	// closeTime bounds how long Close waits for requests that are under way.
	closeTime = 2 * time.Second
	// batch is how many grants are renewed together. A transaction may have 128 parts.
	batch = 64
)

// Options configure a Driver. The zero value works.
type Options struct {
	// Prefix begins the names of all keys, and keeps apart those who use one cluster. A
	// user of etcd needs the right to read and write the keys that begin with it. Default
	// "holdfast/".
	Prefix string
	// TLS, if set, is how to speak TLS to the members.
	TLS *tls.Config
	// Username and Password log in; both or neither.
	Username, Password string
}

// Driver keeps locks in one cluster. It is safe for concurrent use.
type Driver struct {
	prefix string
	nodes  []*node
	client string // the first part of every owner
	seq    atomic.Int64

	alive context.Context // ends with Close
	end   context.CancelFunc
	work  context.Context // of requests; ends somewhat later
	stop  context.CancelFunc

	mu      sync.Mutex // guards what follows
	closed  bool
	tasks   sync.WaitGroup // calls and what they have left in the background; nothing is added after closed
	states  []driver.NodeEvent
	changed chan struct{} // closed when a state changes
	notify  func(driver.NodeEvent)
}

// New returns a driver for the cluster with the given members, each as host:port; opts may
// be nil. It does not block.
func New(members []string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	d := &Driver{prefix: opts.Prefix, client: rand.Text(), changed: make(chan struct{})}
	if d.prefix == "" {
		d.prefix = "holdfast/"
	}
	if err := check(members, opts); err != nil {
		return nil, err
	}
	d.alive, d.end = context.WithCancel(context.Background())
	d.work, d.stop = context.WithCancel(context.Background())
	for i, name := range members {
		d.nodes = append(d.nodes, newNode(d.work, i, name, opts))
		d.states = append(d.states, driver.NodeEvent{Node: name, State: driver.NodeUp})
	}
	first := mathrand.N(len(d.nodes)) // so that clients do not all ask the same one
	d.nodes = slices.Concat(d.nodes[first:], d.nodes[:first])
	d.tasks.Go(d.watch)
	return d, nil
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: time.Second, Token: true, Order: true, MinHold: true}
}

// enter begins a call, which ends with d.tasks.Done.
func (d *Driver) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return driver.ErrClosed
	}
	d.tasks.Add(1)
	return nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	d.end()
	hurry := time.AfterFunc(closeTime, d.stop)
	defer hurry.Stop()
	d.tasks.Wait()
	d.stop()
	for _, n := range d.nodes {
		n.close()
	}
	return nil
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if err := d.enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.tasks.Done()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	c := &claim{d: d, req: req}
	if err := c.compete(ctx); err != nil {
		d.abandon(c.lease)
		return driver.Grant{}, err
	}
	return c.grant(), nil
}

// Renew implements driver.Driver. It tries again until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, 0, len(grants))
	var all sync.WaitGroup
	for part := range slices.Chunk(grants, batch) {
		outcomes := out[len(out) : len(out)+len(part)]
		out = out[:len(out)+len(part)]
		all.Go(func() { d.renew(ctx, part, outcomes) })
	}
	all.Wait()
	return out
}

func (d *Driver) renew(ctx context.Context, grants []driver.Grant, out []driver.Renewal) {
	leases, gets, shortest := make([]clientv3.LeaseID, len(grants)), make([]clientv3.Op, len(grants)), grants[0].TTL
	for i, g := range grants {
		_, leases[i] = parse(g.Owner)
		gets[i] = d.getFirst(g.Key)
		shortest = min(shortest, g.TTL)
	}
	ctx, cancel := context.WithTimeout(ctx, shortest)
	defer cancel()
	var sent time.Time
	var ttls map[clientv3.LeaseID]time.Duration
	var seen *clientv3.TxnResponse
	err := d.insist(ctx, shortest, func(ctx context.Context, c *clientv3.Client) (err error) {
		sent = time.Now()
		if ttls, err = keepAlive(ctx, c, leases...); err == nil {
			seen, err = c.Txn(ctx).Then(gets...).Commit()
		}
		return err
	})
	for i, g := range grants {
		if err != nil {
			out[i].Err = err
			continue
		}
		l := line(seen, i)
		ttl := min(ttls[leases[i]], g.TTL)
		if l.first.owner != g.Owner || ttl <= 0 {
			out[i].Err = driver.ErrLost
			continue
		}
		out[i] = driver.Renewal{TrustedUntil: trust(sent, ttl), Waiters: l.waiters()}
	}
}

// Release implements driver.Driver. The release is repeated in the background until it is
// confirmed, or the lock has lapsed.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.tasks.Done()
	released := make(chan error, 1)
	d.tasks.Go(func() { released <- d.free(g, keep) })
	select {
	case err := <-released:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ctx.Err(), d.unavailable(errors.New("the release is not confirmed yet")))
	}
}

// free revokes the lease of g. To keep the lock, it puts the key under another lease
// before, which nobody renews.
func (d *Driver) free(g driver.Grant, keep time.Duration) error {
	place, lease := parse(g.Owner)
	if keep > 0 {
		ctx, cancel := context.WithTimeout(d.work, g.TTL)
		defer cancel()
		last, err := d.lend(ctx, max(keep, minTTL))
		if err != nil {
			return err
		}
		if _, err := d.move(ctx, d.folder(g.Key)+place, lease, last); err != nil {
			return err // nothing is revoked: the lock may stand under either
		}
	}
	return d.revoke(loan{id: lease, ttl: g.TTL})
}

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	l, err := d.look(ctx, g.Key)
	if err == nil && l.first.owner != g.Owner {
		err = driver.ErrLost
	}
	return err
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64) (done bool, err error) {
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.tasks.Done()
	l, err := d.look(ctx, key)
	if err != nil || token < l.first.token || token >= l.first.token+block || l.first.key == "" {
		return false, err
	}
	tries := 0
	err = d.call(ctx, callTime, func(ctx context.Context, c *clientv3.Client) error {
		tries++
		resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(l.first.key), "=", l.first.lease)).
			Then(clientv3.OpDelete(l.first.key)).Commit()
		done = err == nil && (resp.Succeeded || tries > 1) // the try before may have done it
		return err
	})
	d.abandon(loan{id: l.first.lease, ttl: minTTL})
	return done, err
}

// Detach implements driver.Adopter: there is nothing to forget.
func (d *Driver) Detach(driver.Grant) {}

// Adopt implements driver.Adopter. It puts the key, which keeps its place, under a lease of
// this client.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := d.enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.tasks.Done()
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	defer context.AfterFunc(d.alive, cancel)()
	place, old := parse(g.Owner)
	c := &claim{d: d, req: driver.Request{Key: g.Key, TTL: g.TTL}, key: d.folder(g.Key) + place}
	err := c.adopt(ctx, g, old)
	if err != nil {
		d.abandon(c.lease)
		return driver.Grant{}, err
	}
	d.abandon(loan{id: old, ttl: g.TTL})
	return c.grant(), nil
}

// Inspect implements driver.Inspector. Status.Nodes has what each member knows by itself.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	l, err := d.look(ctx, key)
	st := d.status(ctx, key, l)
	st.Nodes = make([]driver.NodeStatus, len(d.nodes))
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() {
			view := driver.NodeStatus{Node: n.name}
			view.Err = n.try(ctx, callTime, func(ctx context.Context, c *clientv3.Client) error {
				resp, err := c.Get(ctx, d.folder(key), append(clientv3.WithFirstCreate(), clientv3.WithSerializable())...)
				if err == nil {
					l := lineOf(resp)
					view.Owner, view.Token, view.Waiters = l.first.owner, l.first.token, l.waiters()
				}
				return err
			})
			if view.Owner != "" && view.Owner == st.Owner {
				view.Remaining = st.Remaining
			}
			st.Nodes[n.place] = view
		})
	}
	all.Wait()
	return st, err
}

// List implements driver.Lister. All pages are of one revision.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	const page = 1000
	from := d.prefix + escape(prefix)
	end, revision := clientv3.GetPrefixRangeEnd(from), int64(0)
	var name string
	var lock lineUp
	show := func() bool { return lock.first.key == "" || yield(d.status(ctx, name, lock)) }
	for {
		var resp *clientv3.GetResponse
		err := d.call(ctx, callTime, func(ctx context.Context, c *clientv3.Client) (err error) {
			resp, err = c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(page))
			return err
		})
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			key, ok := d.nameOf(string(kv.Key))
			if !ok {
				continue
			}
			if key != name && !show() {
				return nil
			} else if key != name {
				name, lock = key, lineUp{}
			}
			lock.add(read(kv))
		}
		if !resp.More {
			break
		}
		revision, from = resp.Header.Revision, string(resp.Kvs[len(resp.Kvs)-1].Key)+"\x00"
	}
	show()
	return nil
}

// status is what the service knows of a lock.
func (d *Driver) status(ctx context.Context, key string, l lineUp) driver.Status {
	st := driver.Status{Key: key, Waiters: l.waiters()}
	if l.first.key != "" {
		st.Held, st.Owner, st.Token = true, l.first.owner, l.first.token
		st.Holder, st.Since = l.first.value.Holder, l.first.value.Since
		st.Remaining = d.remaining(ctx, l.first.lease)
	}
	return st
}

// remaining is how long a lease still lasts unless it is renewed; 0 if that is not known.
func (d *Driver) remaining(ctx context.Context, lease clientv3.LeaseID) time.Duration {
	if lease == clientv3.NoLease {
		return -1 // another program has put the key there
	}
	var left int64
	d.call(ctx, callTime, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.TimeToLive(ctx, lease)
		if err == nil {
			left = max(resp.TTL, 0)
		}
		return err
	})
	return time.Duration(left) * time.Second
}

// Nodes implements driver.Notifier.
func (d *Driver) Nodes() []driver.NodeEvent {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.states)
}

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = fn
}

// check says what is wrong with the arguments of New.
func check(members []string, opts *Options) error {
	switch {
	case len(members) == 0:
		return fmt.Errorf("%w: no member of the cluster is named; give host:port of each", driver.ErrInvalid)
	case (opts.Username == "") != (opts.Password == ""):
		return fmt.Errorf("%w: a user without a password, or a password without a user; give both or neither", driver.ErrInvalid)
	}
	for i, m := range members {
		if host, port, ok := strings.Cut(m, ":"); !ok || host == "" || port == "" || strings.ContainsAny(m, "/@ ") {
			return fmt.Errorf("%w: member %d of the cluster is not of the form host:port", driver.ErrInvalid, i+1)
		}
		if slices.Contains(members[:i], m) {
			return fmt.Errorf("%w: the member %s is named twice", driver.ErrInvalid, m)
		}
	}
	return nil
}
