package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/direct"
)

// loan is a lease of etcd, which this package calls so because a holder has a lease too.
type loan struct {
	id   clientv3.LeaseID
	ttl  time.Duration
	sent time.Time // when its last renewal was, or it was asked for
}

// claim is one attempt at a lock.
type claim struct {
	d        *Driver
	req      driver.Request
	place    string // in the folder of the lock
	lease    loan
	revision int64 // that created the key; 0: it is not known to exist
	token    int64
	wait     direct.Wait
}

func (c *claim) key() string { return c.d.folder(c.req.Key) + c.place }

// compete goes on until the lock is granted or that is out of the question.
func (c *claim) compete(ctx context.Context) error {
	return c.wait.Compete(ctx, c.d.calls, c.req.NoWait, c.advance)
}

// advance does what is to be done next, and returns nil when the claim has the lock.
func (c *claim) advance(ctx context.Context) error {
	if c.lease.id == clientv3.NoLease {
		if err := c.borrow(ctx); err != nil {
			return err
		}
	}
	if c.revision == 0 {
		return c.queue(ctx)
	}
	return c.look(ctx)
}

// borrow gets a lease. A try looks first, so that one in vain changes nothing. A lease that
// comes when its claim has gone is revoked.
func (c *claim) borrow(ctx context.Context) error {
	if c.req.NoWait {
		if l, err := c.d.look(ctx, c.req.Key); err != nil {
			return err
		} else if l.first.key != "" {
			return c.d.heldBy(ctx, l)
		}
	}
	c.place = c.d.newPlace()
	var lease loan
	lent := make(chan error, 1)
	c.d.calls.Go(func() { lent <- c.d.call(c.d.calls.Work, patience(c.req.TTL), lending(c.req.TTL, &lease)) })
	select {
	case err := <-lent:
		c.lease = lease
		return errors.Join(err, lease.tooLong(c.req.TTL))
	case <-ctx.Done():
		c.d.calls.Go(func() { <-lent; c.d.abandon(lease) })
		return ctx.Err()
	}
}

// queue creates the key; that of a try, only where there is no other. Of a key that is there
// already the answer was lost. The last key before one that was created just now is the one
// to wait for.
func (c *claim) queue(ctx context.Context) error {
	folder := c.d.folder(c.req.Key)
	none := clientv3.Compare(clientv3.CreateRevision(c.key()), "=", 0)
	if c.req.NoWait {
		none = clientv3.Compare(clientv3.CreateRevision(folder).WithPrefix(), "=", 0)
	}
	text, _ := json.Marshal(value{c.req.Holder, time.Now()}) // strings, a number and a time
	put := clientv3.OpPut(c.key(), string(text), clientv3.WithLease(c.lease.id))
	own, first := clientv3.OpGet(c.key()), c.d.getFirst(c.req.Key)
	last := clientv3.OpGet(folder, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))
	var resp *clientv3.TxnResponse
	err := c.d.call(ctx, patience(c.req.TTL), func(ctx context.Context, cl *clientv3.Client) (err error) {
		resp, err = cl.Txn(ctx).If(none).Then(put, first, last).Else(own, first).Commit()
		return err
	})
	switch {
	case errors.Is(err, driver.ErrLost): // the lease is over
		c.reset()
		return direct.ErrAgain
	case err != nil:
		return err
	case resp.Succeeded:
		c.revision = resp.Header.Revision
		keys := resp.Responses[2].GetResponseRange().Kvs
		if len(keys) == 1 {
			return c.take(ctx, read(keys[0]))
		}
		return c.await(ctx, read(keys[1]), line(resp, 1), c.revision)
	}
	if c.revision = line(resp, 0).first.revision; c.revision == 0 {
		return c.d.heldBy(ctx, line(resp, 1))
	}
	return direct.ErrAgain
}

// reset forgets a lease that is over, and the place in line with it.
func (c *claim) reset() { c.lease, c.revision = loan{}, 0 }

// look looks who is before the claim, and waits until that may be otherwise.
func (c *claim) look(ctx context.Context) error {
	var resp *clientv3.TxnResponse
	err := c.d.call(ctx, patience(c.req.TTL), func(ctx context.Context, cl *clientv3.Client) (err error) {
		resp, err = cl.Txn(ctx).Then(
			clientv3.OpGet(c.key()),
			clientv3.OpGet(c.d.folder(c.req.Key), append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(c.revision-1))...),
			c.d.getFirst(c.req.Key)).Commit()
		return err
	})
	if err != nil {
		return err
	}
	own, before := line(resp, 0).first, line(resp, 1).first
	switch {
	case own.lease != c.lease.id:
		c.reset()
		return direct.ErrAgain
	case before.key == "":
		return c.take(ctx, own)
	}
	return c.await(ctx, before, line(resp, 2), resp.Header.Revision)
}

// take says that the claim has the lock. The lease may be old by now.
func (c *claim) take(ctx context.Context, own entry) error {
	c.token = own.token
	if time.Until(direct.Trust(c.lease.sent, c.lease.ttl)) > c.lease.ttl/2 {
		return nil
	}
	return c.keep(ctx)
}

func (c *claim) grant() driver.Grant {
	return driver.Grant{
		Key: c.req.Key, Owner: ownerOf(c.place, c.lease.id), Token: c.token, Block: block,
		TTL: c.lease.ttl, TrustedUntil: direct.Trust(c.lease.sent, c.lease.ttl),
	}
}

// keep renews the lease.
func (c *claim) keep(ctx context.Context) error {
	var r renewal
	own := clientv3.OpGet(c.key(), clientv3.WithCountOnly())
	err := c.d.call(ctx, patience(c.req.TTL), renewing([]clientv3.LeaseID{c.lease.id}, []clientv3.Op{own}, &r))
	if errors.Is(err, driver.ErrLost) || err == nil && r.ttls[c.lease.id] <= 0 {
		c.reset()
		return direct.ErrAgain
	}
	if err == nil {
		c.lease.sent = r.sent
	}
	return err
}

// await returns when the key before the claim's or its own is deleted, when the member that
// watches them fails, and when it cannot renew the lease.
func (c *claim) await(ctx context.Context, before entry, l lineUp, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := c.d.order()[0]
	up, changed := c.d.states.Up(n.place)
	gone := make(chan error, 2)
	for _, key := range []string{before.key, c.key()} {
		c.d.calls.Go(func() { gone <- n.awaitDelete(ctx, key, revision+1) })
	}
	held, left := l.held(), make(chan time.Duration, 1)
	c.d.calls.Go(func() { left <- c.d.remaining(ctx, l.first.lease) }) // which must not hold up the others
	due := time.NewTimer(time.Until(c.lease.sent.Add(c.lease.ttl / 3)))
	defer due.Stop()
	for up {
		select {
		case err := <-gone:
			if err == nil || ctx.Err() != nil {
				return direct.ErrAgain
			}
			return c.d.states.Unavailable(nil, driver.NodeError{Node: n.name, Err: err})
		case <-changed:
			up, changed = c.d.states.Up(n.place)
		case <-due.C:
			if err := c.keep(ctx); err != nil {
				return err
			}
			due.Reset(c.lease.ttl / 3)
		case held.Remaining = <-left:
			c.wait.Note(held)
		case <-ctx.Done():
			if !errors.Is(c.wait.Last, driver.ErrHeld) {
				c.wait.Last = held
			}
			return ctx.Err()
		}
	}
	return direct.ErrAgain
}

// awaitDelete returns nil when key has been deleted, at revision or later. The servers look
// only ten times a second for what happened before a watch was there, so it asks for that.
func (n *node) awaitDelete(ctx context.Context, key string, revision int64) error {
	c, err := n.open(ctx)
	if err != nil {
		return explain(ctx, err)
	}
	events := c.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithRev(revision), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	for resp := range events {
		if err := resp.Err(); err != nil {
			return explain(ctx, err)
		}
		if len(resp.Events) > 0 {
			return nil
		}
		if resp.Created && resp.Header.Revision >= revision {
			if now, err := c.Get(ctx, key, clientv3.WithCountOnly()); err == nil && now.Count == 0 {
				return nil
			}
		}
	}
	return explain(ctx, errors.New("the watch has ended"))
}

// heldBy is who has the lock, and for how long.
func (d *Driver) heldBy(ctx context.Context, l lineUp) error {
	held := l.held()
	held.Remaining = d.remaining(ctx, l.first.lease)
	return held
}

func (l lineUp) held() *driver.HeldError {
	return &driver.HeldError{Owner: l.first.owner, Holder: l.first.value.Holder, Since: l.first.value.Since, Waiters: l.waiters()}
}

// look reads who has a lock.
func (d *Driver) look(ctx context.Context, name string) (l lineUp, err error) {
	err = d.call(ctx, callTime, d.looking(name, &l))
	return l, err
}

func (d *Driver) looking(name string, l *lineUp) request {
	return func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Do(ctx, d.getFirst(name))
		if err == nil {
			*l = lineOf(resp.Get())
		}
		return err
	}
}

// lending gets a lease. One whose answer was lost has no key, and lapses.
func lending(ttl time.Duration, l *loan) request {
	return func(ctx context.Context, c *clientv3.Client) error {
		sent := time.Now()
		resp, err := c.Grant(ctx, seconds(ttl))
		if err == nil {
			*l = loan{resp.ID, time.Duration(resp.TTL) * time.Second, sent}
		}
		return err
	}
}

// seconds is a TTL as the servers count it.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// tooLong is an error if the lease is longer than was asked for: the lock of a holder that
// died would stand for so long.
func (l loan) tooLong(asked time.Duration) error {
	if l.ttl <= time.Duration(seconds(asked))*time.Second {
		return nil
	}
	return fmt.Errorf("%w: these servers grant no TTL under %v, and %v was asked for; take a longer TTL, or give the servers a shorter --election-timeout",
		driver.ErrInvalid, l.ttl, asked)
}

// move puts a key under another lease, where it keeps its place in line.
func (d *Driver) move(ctx context.Context, key string, from clientv3.LeaseID, to loan) (moved entry, err error) {
	err = d.insist(ctx, to.ttl, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", from)).
			Then(clientv3.OpPut(key, "", clientv3.WithLease(to.id), clientv3.WithIgnoreValue()), clientv3.OpGet(key)).
			Else(clientv3.OpGet(key), clientv3.OpGet(key)).Commit()
		if err == nil {
			moved = line(resp, 1).first
		}
		return err
	})
	return moved, err
}

// adopt takes over the key of g, if that has the lock. Once first in line, a key stays so.
func (c *claim) adopt(ctx context.Context, g driver.Grant, old clientv3.LeaseID) error {
	var l lineUp
	err := c.d.insist(ctx, g.TTL, c.d.looking(g.Key, &l))
	switch {
	case err != nil:
		return err
	case l.first.owner != g.Owner:
		return driver.ErrLost
	case l.first.moves >= adoptions-1:
		return fmt.Errorf("%w: this lease was adopted %d times, and etcd has no later token for it; release it and take the lock anew",
			driver.ErrUnsupported, l.first.moves)
	}
	if err := c.d.insist(ctx, g.TTL, lending(g.TTL, &c.lease)); err != nil {
		return err
	}
	moved, err := c.d.move(ctx, c.key(), old, c.lease)
	switch {
	case err != nil:
		return err
	case moved.lease != c.lease.id:
		return driver.ErrLost
	}
	c.token = moved.token
	return nil
}

// revoke ends a lease, and deletes the key under it.
func (d *Driver) revoke(l loan) error {
	if l.id == clientv3.NoLease {
		return nil
	}
	ctx, cancel := context.WithTimeout(d.calls.Work, max(l.ttl, minTTL))
	defer cancel()
	err := d.insist(ctx, l.ttl, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, l.id)
		return err
	})
	if errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}

// abandon revokes a lease in the background; what it cannot revoke lapses.
func (d *Driver) abandon(l loan) {
	if l.id != clientv3.NoLease {
		d.calls.Go(func() { d.revoke(l) })
	}
}
