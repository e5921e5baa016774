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
// delete keys. The read has to be of the same term as the renewal: a leader that was
// stopped confirms renewals until it learns of its successor, who does not know of them.
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
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/direct"
)

const (
	minTTL = 2 * time.Second
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

	calls  *direct.Calls
	states *direct.States

	mu    sync.Mutex // guards what follows
	alert func(owner, why string)
	hears bool // of what Force tells this client
}

// New returns a driver for the cluster with the given members, each as host:port; opts may
// be nil. It does not block.
func New(members []string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	if err := direct.CheckMembers(members, "cluster", opts.Username, opts.Password); err != nil {
		return nil, err
	}
	d := &Driver{prefix: opts.Prefix, client: rand.Text(), calls: direct.NewCalls(), states: direct.NewStates(members...)}
	if d.prefix == "" {
		d.prefix = "holdfast/"
	}
	for i, name := range members {
		d.nodes = append(d.nodes, newNode(d.calls.Work, i, name, opts))
	}
	first := mathrand.N(len(d.nodes)) // so that clients do not all ask the same one
	d.nodes = slices.Concat(d.nodes[first:], d.nodes[:first])
	d.calls.Go(d.watch)
	return d, nil
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: time.Second, Token: true, Order: true, MinHold: true}
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
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
	c := &claim{d: d, req: req, wait: direct.Wait{Tell: req.Obstacle}}
	if err := c.compete(ctx); err != nil {
		d.abandon(c.lease)
		return driver.Grant{}, err
	}
	d.hear()
	return c.grant(), nil
}

// Renew implements driver.Driver. It tries again until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	var all sync.WaitGroup
	for i := 0; i < len(grants); i += batch {
		end := min(i+batch, len(grants))
		all.Go(func() { d.renew(ctx, grants[i:end], out[i:end]) })
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
	var r renewal
	err := d.insist(ctx, shortest, renewing(leases, gets, &r))
	for i, g := range grants {
		if err != nil {
			out[i].Err = err
		} else if l, ttl := line(r.seen, i), r.ttls[leases[i]]; l.first.owner != g.Owner || ttl <= 0 {
			out[i].Err = driver.ErrLost
		} else {
			out[i] = driver.Renewal{TrustedUntil: direct.Trust(r.sent, min(ttl, g.TTL)), Waiters: l.waiters()}
		}
	}
}

// Release implements driver.Driver. The release is repeated in the background until it is
// confirmed, or the lock has lapsed.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	return d.calls.Finish(ctx, d.states, time.Now(), func() error { return d.free(g, keep) })
}

// free revokes the lease of g. To keep the lock, it puts the key under another lease
// before, which nobody renews.
func (d *Driver) free(g driver.Grant, keep time.Duration) error {
	place, lease := parse(g.Owner)
	if keep > 0 {
		ctx, cancel := context.WithTimeout(d.calls.Work, g.TTL)
		defer cancel()
		var last loan
		err := d.insist(ctx, g.TTL, lending(max(keep, minTTL), &last))
		if err == nil {
			_, err = d.move(ctx, d.folder(g.Key)+place, lease, last)
		}
		if err != nil {
			return err // nothing is revoked: the lock may stand under either
		}
	}
	return d.revoke(loan{id: lease, ttl: g.TTL})
}

// Detach implements driver.Adopter: there is nothing to forget.
func (d *Driver) Detach(driver.Grant) {}

// Adopt implements driver.Adopter. It puts the key, which keeps its place, under a lease of
// this client.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	defer context.AfterFunc(d.calls.Alive, cancel)()
	place, old := parse(g.Owner)
	c := &claim{d: d, req: driver.Request{Key: g.Key, TTL: g.TTL}, place: place}
	if err := c.adopt(ctx, g, old); err != nil {
		d.abandon(c.lease)
		if d.calls.Alive.Err() != nil {
			err = driver.ErrClosed
		}
		return driver.Grant{}, err
	}
	d.abandon(loan{id: old, ttl: g.TTL})
	d.hear()
	return c.grant(), nil
}
