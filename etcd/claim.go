package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// claim is one attempt to acquire a lock.
type claim struct {
	d        *Driver
	req      driver.Request
	place    string // name of the key in the lock's folder
	lease    loan
	revision int64 // revision that created the key; 0: not known to exist
	moves    int64 // as in id
	token    int64
	loose    bool // a request to create the key may still be executed
	wait     driverkit.Wait
}

func (c *claim) key() string { return c.d.folderOf(c.req.Key) + c.place }

// acquireLock makes the steps of the claim until the lock is granted or an error ends the attempt.
func (c *claim) acquireLock(ctx context.Context) error {
	return c.wait.RetryUntilWon(ctx, c.d.calls, c.req.NoWait, c.tryStep)
}

// tryStep makes the next step. It returns nil once the claim has the lock.
func (c *claim) tryStep(ctx context.Context) error {
	return driverkit.TakeTurn(ctx, c.d.lane, c.req, c.lease.id != clientv3.NoLease, c.requestMissing, c.awaitTurn)
}

// rivals are the claims before a claim, at one revision.
type rivals struct {
	before   entry // the claim waits until this key is deleted
	line     waitQueue
	revision int64
}

// requestMissing requests what the claim lacks: a lease, a key, the lock. If there is no error and no rival,
// the claim has the lock.
func (c *claim) requestMissing(ctx context.Context) (*rivals, error) {
	if c.lease.id == clientv3.NoLease {
		if err := c.borrowLease(ctx); err != nil {
			return nil, err
		}
	}
	if c.revision == 0 {
		return c.createKey(ctx)
	}
	return c.readRivals(ctx)
}

// borrowLease gets a lease. If the caller does not wait and no spare lease exists, it first reads the lock, so
// that a failed attempt changes nothing. A lease that arrives after its claim has ended is revoked.
func (c *claim) borrowLease(ctx context.Context) error {
	c.place, c.loose = c.d.owners.Next(false), false
	if c.req.WillRenew {
		var ok bool
		if c.lease, ok = c.d.loans.take(c.req.TTL); ok {
			return nil
		}
	}
	if c.req.NoWait {
		if l, err := c.d.readQueue(ctx, c.req.Key); err != nil {
			return err
		} else if l.first.key != "" {
			return c.d.heldBy(ctx, l)
		}
	}
	var lease loan
	lent := make(chan error, 1)
	c.d.calls.Go(func() {
		lent <- c.d.callAny(c.d.calls.Work, pace.RequestTime(c.req.TTL, pace.Members), grantRequest(c.req.TTL, &lease))
	})
	select {
	case err := <-lent:
		c.lease = lease
		return errors.Join(err, lease.tooLong(c.req.TTL))
	case <-ctx.Done():
		c.d.calls.Go(func() { <-lent; c.d.abandonLease(lease) })
		return ctx.Err()
	}
}

// giveUp ends a failed claim. A lease that certainly has no key becomes spare; any other is revoked.
func (c *claim) giveUp() {
	if c.revision != 0 || c.loose || !c.d.loans.save(c.lease) {
		c.d.abandonLease(c.lease)
	}
}

// createKey creates the key. A claim that does not wait creates it only if no other key exists. If the key
// exists already, an earlier answer was lost. The claim waits for the newest key before its own.
func (c *claim) createKey(ctx context.Context) (*rivals, error) {
	folder := c.d.folderOf(c.req.Key)
	base, known := c.d.base.known(c.d.baseKey())
	none := clientv3.Compare(clientv3.CreateRevision(c.key()), "=", 0)
	if c.req.NoWait {
		none = clientv3.Compare(clientv3.CreateRevision(folder).WithPrefix(), "=", 0)
	}
	says := value{Holder: c.req.Holder, Since: time.Now(), Adoptable: c.req.Adoptable, Base: base}
	put := clientv3.OpPut(c.key(), says.text(), clientv3.WithLease(c.lease.id))
	own, first, tokens := clientv3.OpGet(c.key()), c.d.getFirst(c.req.Key), clientv3.OpGet(c.d.baseKey())
	last := clientv3.OpGet(folder, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))
	var resp *clientv3.TxnResponse
	err := c.d.callAny(ctx, pace.RequestTime(c.req.TTL, pace.Members), func(ctx context.Context, cl *clientv3.Client) (err error) {
		resp, err = cl.Txn(ctx).If(none, known).Then(put, last).Else(own, first, tokens).Commit()
		c.loose = c.loose || err != nil
		return err
	})
	switch {
	case errors.Is(err, driver.ErrLost): // the lease is over
		c.forgetLease()
		return nil, driverkit.ErrRetryNow
	case err != nil:
		return nil, err
	case resp.Succeeded:
		c.revision = resp.Header.Revision
		keys, count := resp.Responses[1].GetResponseRange().Kvs, queueFrom(resp, 1).keys
		switch {
		case len(keys) != min(count, 2):
		case count == 1:
			return nil, c.completeGrant(ctx, readEntry(keys[0]))
		case count == 2:
			return &rivals{readEntry(keys[1]), waitQueue{readEntry(keys[1]), count}, c.revision}, nil
		}
		return nil, driverkit.ErrRetryNow // to read the holder
	}
	c.revision = queueFrom(resp, 0).first.revision
	switch {
	case c.revision != 0:
		return nil, driverkit.ErrRetryNow
	case c.req.NoWait && queueFrom(resp, 1).keys > 0:
		return nil, c.d.heldBy(ctx, queueFrom(resp, 1))
	}
	if err := c.d.updateBase(ctx, c.req.TTL, resp.Responses[2].GetResponseRange().Kvs, resp.Header.Revision); err != nil {
		return nil, err
	}
	return nil, driverkit.ErrRetryNow
}

// forgetLease drops a lease that is over, and the key under it. No request can create a key under that lease.
func (c *claim) forgetLease() { c.lease, c.revision = loan{}, 0 }

// readRivals reads the keys before the claim's own.
func (c *claim) readRivals(ctx context.Context) (*rivals, error) {
	var resp *clientv3.TxnResponse
	err := c.d.callAny(ctx, pace.RequestTime(c.req.TTL, pace.Members), func(ctx context.Context, cl *clientv3.Client) (err error) {
		resp, err = cl.Txn(ctx).Then(
			clientv3.OpGet(c.key()),
			clientv3.OpGet(c.d.folderOf(c.req.Key), append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(c.revision-1))...),
			c.d.getFirst(c.req.Key)).Commit()
		return err
	})
	if err != nil {
		return nil, err
	}
	own, before := queueFrom(resp, 0).first, queueFrom(resp, 1).first
	switch {
	case own.lease != c.lease.id:
		c.forgetLease()
		return nil, driverkit.ErrRetryNow
	case before.key == "":
		return nil, c.completeGrant(ctx, own)
	}
	return &rivals{before, queueFrom(resp, 2), resp.Header.Revision}, nil
}

// completeGrant completes the claim as the holder. The lease may be old by now. A holder that renews gets at
// least half of the TTL; a holder that does not gets the TTL less the limit of one request.
func (c *claim) completeGrant(ctx context.Context, own entry) error {
	c.token = own.token
	age := c.lease.ttl / 2
	if !c.req.WillRenew {
		age = pace.RequestTime(c.lease.ttl, pace.Members)
	}
	if time.Since(c.lease.sent) < age {
		return nil
	}
	return c.renewLease(ctx, c.key())
}

func (c *claim) newGrant() driver.Grant {
	if !c.loose {
		c.d.loans.markUsed(c.lease)
	}
	return driver.Grant{
		Key: c.req.Key, Owner: id{c.place, c.lease.id, c.moves}.owner(c.req.Adoptable), Token: c.token, Block: driverkit.Block,
		TTL: c.lease.ttl, TrustedUntil: driverkit.TrustEnd(c.lease.sent, c.lease.ttl),
	}
}

// renewLease renews the lease. If the key before the claim's is gone, the claim reads its rivals again.
func (c *claim) renewLease(ctx context.Context, before string) error {
	var r renewal
	stands := clientv3.OpGet(before, clientv3.WithCountOnly())
	err := c.d.callAny(ctx, pace.RequestTime(c.req.TTL, pace.Members), renewRequest([]clientv3.LeaseID{c.lease.id}, []clientv3.Op{stands}, &r))
	if errors.Is(err, driver.ErrLost) || err == nil && r.ttls[c.lease.id] <= 0 {
		c.forgetLease()
		return driverkit.ErrRetryNow
	}
	if err != nil {
		return err
	}
	c.lease.sent = r.sent
	if queueFrom(r.seen, 0).keys == 0 {
		return driverkit.ErrRetryNow
	}
	return nil
}

// awaitTurn waits until the key before the claim's or the claim's own is deleted. It also returns if the
// member that watches them fails or the lease cannot be renewed.
func (c *claim) awaitTurn(ctx context.Context, a *rivals) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := c.d.nodeOrder()[0]
	up, changed := c.d.states.Up(n.place)
	gone := make(chan error, 2)
	for _, key := range []string{a.before.key, c.key()} {
		c.d.calls.Go(func() { gone <- n.awaitDelete(ctx, key, a.revision+1) })
	}
	held, left := a.line.heldError(), make(chan time.Duration, 1)
	held.Waiters = max(held.Waiters-1, 0) // do not count the claim itself

	c.d.calls.Go(func() { // the report must not delay the watch
		c.d.lane.Do(ctx, driverkit.Later, nil, func() error {
			known, err := c.d.leaseRemaining(ctx, a.line.first.lease)
			left <- known
			return err
		})
	})
	early := *held // used if no member reports the remaining time early enough
	soon := time.NewTimer(pace.LongPause)
	defer soon.Stop()
	due := time.NewTimer(time.Until(c.lease.sent.Add(c.lease.ttl / 3)))
	defer due.Stop()
	for up {
		select {
		case err := <-gone:
			if err == nil || ctx.Err() != nil {
				return driverkit.ErrRetryNow
			}
			return c.d.states.Unavailable(nil, driver.NodeError{Node: n.name, Err: err})
		case <-changed:
			up, changed = c.d.states.Up(n.place)
		case <-due.C: // a restored cluster may be at a revision before the watch's
			if err := c.renewLease(ctx, a.before.key); err != nil {
				return err
			}
			due.Reset(c.lease.ttl / 3)
		case held.Remaining = <-left:
			soon.Stop()
			c.wait.SetObstacle(held)
		case <-soon.C:
			c.wait.SetObstacle(&early)
		case <-ctx.Done():
			if !errors.Is(c.wait.Last, driver.ErrHeld) {
				c.wait.Last = held
			}
			return ctx.Err()
		}
	}
	return driverkit.ErrRetryNow
}

// awaitDelete returns nil once key was deleted, at revision or later. It also reads the key, because servers
// check only ten times a second for events before a new watch.
func (n *node) awaitDelete(ctx context.Context, key string, revision int64) error {
	in, _, err := n.withLogin(ctx)
	if err != nil {
		return err
	}
	for resp := range n.client.Watch(clientv3.WithRequireLeader(in), key, clientv3.WithRev(revision), clientv3.WithFilterPut(), clientv3.WithCreatedNotify()) {
		err := resp.Err()
		switch {
		case errors.Is(err, rpctypes.ErrCompacted): // events before the reconnect are lost
			return nil
		case err != nil:
			return n.watchError(ctx, key, err)
		case len(resp.Events) > 0:
			return nil
		case resp.Created && resp.Header.Revision >= revision:
			if now, err := n.client.Get(in, key, clientv3.WithCountOnly()); err == nil && now.Count == 0 {
				return nil
			}
		}
	}
	return explainError(ctx, errors.New("the watch has ended"))
}

// watchError returns the error of a watch. A watch may be rejected for an old login: a read renews the login
// or reports the missing permission. Then the claim reads its rivals again.
func (n *node) watchError(ctx context.Context, key string, err error) error {
	if err = explainError(ctx, err); !driverkit.IsPermanent(err) {
		return err
	}
	err = n.tryRequest(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error {
		return errorOf(c.Get(ctx, key, clientv3.WithCountOnly()))
	})
	driverkit.Sleep(ctx, pace.LongPause)
	return err
}

func errorOf[T any](_ T, err error) error { return err }

// heldBy returns a HeldError with the holder and the remaining time.
func (d *Driver) heldBy(ctx context.Context, l waitQueue) error {
	held := l.heldError()
	held.Remaining, _ = d.leaseRemaining(ctx, l.first.lease)
	return held
}

func (l waitQueue) heldError() *driver.HeldError {
	return &driver.HeldError{Owner: l.first.owner, Holder: l.first.value.Holder, Since: l.first.value.Since, Kept: l.first.value.Kept, Waiters: l.waiterCount()}
}

// readQueue reads the first key of a lock and the number of its keys.
func (d *Driver) readQueue(ctx context.Context, name string) (l waitQueue, err error) {
	err = d.callAny(ctx, pace.CallTime(), d.queueRequest(name, &l))
	return l, err
}

func (d *Driver) queueRequest(name string, l *waitQueue) request {
	return func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Do(ctx, d.getFirst(name))
		if err == nil {
			*l = queueOf(resp.Get())
		}
		return err
	}
}

// grantRequest requests a lease. If the answer is lost, that lease has no key and expires.
func grantRequest(ttl time.Duration, l *loan) request {
	return func(ctx context.Context, c *clientv3.Client) error {
		sent := time.Now()
		resp, err := c.Grant(ctx, wholeSeconds(ttl))
		switch {
		case err != nil:
		case int64(resp.ID) == wholeSeconds(ttl): // kine returns the TTL as the id, which all leases then share
			return errNoEtcd
		case resp.ID == clientv3.NoLease, resp.TTL <= 0:
			return errors.New("the member has granted a lease without an id or a time")
		default:
			*l = loan{resp.ID, secondsDuration(resp.TTL), sent}
		}
		return err
	}
}

// wholeSeconds returns a TTL in seconds, rounded up as servers count it.
func wholeSeconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// tooLong returns an error if the servers granted a longer lease than requested, as they do with a long
// election timeout (findings/etcd-lease-is-longer-than-asked.sh): the lock of a dead holder would last as
// long.
func (l loan) tooLong(asked time.Duration) error {
	if l.ttl <= time.Duration(wholeSeconds(asked))*time.Second {
		return nil
	}
	return fmt.Errorf("%w: these servers grant no TTL under %v, and %v was asked for; take a longer TTL, or give the servers a shorter --election-timeout",
		driver.ErrInvalid, l.ttl, asked)
}

// adoptKey takes over the key of g, if that has the lock. The first key in the queue stays first, and keeps its
// lease. So a late execution of the change ends nothing earlier than the last renewal promised.
func (c *claim) adoptKey(ctx context.Context, g driver.Grant) error {
	var l waitQueue
	err := c.d.callUntilAnswer(ctx, g.TTL, c.d.queueRequest(g.Key, &l))
	switch {
	case err != nil:
		return err
	case l.first.owner != g.Owner || l.first.value.Kept:
		return driver.ErrLost
	case !l.first.value.Adoptable:
		return fmt.Errorf("%w: it was not acquired to be adopted", driver.ErrInvalid)
	case l.first.moves >= adoptions-1:
		return fmt.Errorf("%w: this lease was adopted %d times, and etcd has no later token for it; release it and acquire the lock again",
			driver.ErrUnsupported, l.first.moves)
	}
	says := l.first.value
	says.Adopter = c.d.owners.Next(false)
	now, err := c.d.changeKey(ctx, g.TTL, l.first, clientv3.OpPut(l.first.key, says.text(), clientv3.WithIgnoreLease()))
	switch {
	case err != nil:
		return err
	case now.value.Adopter != says.Adopter:
		return driver.ErrLost
	}
	c.place, c.lease, c.moves, c.token, c.revision = now.place, loan{id: now.lease, ttl: g.TTL}, now.moves, now.token, now.revision
	var r renewal
	err = c.d.callUntilAnswer(ctx, g.TTL, renewRequest([]clientv3.LeaseID{now.lease}, []clientv3.Op{clientv3.OpGet(now.key)}, &r))
	switch {
	case err != nil:
		return err
	case r.ttls[now.lease] <= 0 || queueFrom(r.seen, 0).first.owner != now.owner:
		return driver.ErrLost
	}
	c.lease.ttl, c.lease.sent = r.ttls[now.lease], r.sent
	return nil
}

// changeKey applies do to a key if it is unchanged since was, and returns the new state of the key.
func (d *Driver) changeKey(ctx context.Context, ttl time.Duration, was entry, do clientv3.Op) (now entry, err error) {
	err = d.callUntilAnswer(ctx, ttl, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).If(was.compareUnchanged(was.key[:len(was.key)-len(was.place)])).
			Then(do, clientv3.OpGet(was.key)).Else(clientv3.OpGet(was.key), clientv3.OpGet(was.key)).Commit()
		if err == nil {
			now = queueFrom(resp, 1).first
		}
		return err
	})
	return now, err
}

// revokeLease revokes a lease, which deletes its key.
func (d *Driver) revokeLease(l loan) error {
	if l.id == clientv3.NoLease {
		return nil
	}
	ctx, cancel := context.WithTimeout(d.calls.Work, max(l.ttl, minTTL))
	defer cancel()
	err := d.callInTurn(ctx, l.ttl, func() {}, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, l.id)
		return err
	})
	if errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}

// abandonLease revokes a lease in the background; what it cannot revoke expires.
func (d *Driver) abandonLease(l loan) {
	if l.id != clientv3.NoLease {
		d.calls.Go(func() { d.revokeLease(l) })
	}
}
