package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// pageSize is the number of keys per request of List.
const pageSize = 500

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	l, err := d.readQueue(ctx, g.Key)
	if err == nil && l.first.owner != g.Owner {
		err = driver.ErrLost
	}
	return err
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64, reason string) (done bool, err error) {
	if err := d.calls.Enter(); err != nil {
		return false, err
	}
	defer d.calls.Leave()
	l, err := d.readQueue(ctx, key)
	if err != nil || !l.first.hasToken(token) {
		return false, err
	}
	var message loan // lease of the key that notifies the holder
	if err := d.callAny(ctx, pace.CallTime(), grantRequest(minTTL, &message)); err != nil {
		return false, err
	}
	defer d.abandonLease(message) // its watcher still receives the message
	unknown := false              // an earlier attempt may have succeeded
	err = d.callAny(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).If(l.first.compareUnchanged(d.folderOf(key))).
			Then(clientv3.OpDelete(l.first.key), clientv3.OpPut(d.messagePrefix()+l.first.owner, reason, clientv3.WithLease(message.id))).Commit()
		done = err == nil && (resp.Succeeded || unknown)
		unknown = unknown || err != nil && !isStale(err)
		return err
	})
	return done, err // do not revoke its lease: the holder may use it for another lock
}

// Alert implements driver.Alerter.
func (d *Driver) Alert(fn func(owner, reason string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alert = fn
}

// startAlerts starts the watch for messages of Force to this client, once. The caller is inside a call.
func (d *Driver) startAlerts() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hears || d.alert == nil {
		return
	}
	d.hears = true
	alert := d.alert
	d.calls.Go(func() {
		for {
			d.watchAlerts(alert)
			if !driverkit.Sleep(d.calls.Alive, pace.LongPause) {
				return
			}
		}
	})
}

// watchAlerts watches until its member fails. Messages between two watches are lost.
func (d *Driver) watchAlerts(alert func(owner, why string)) {
	ctx, cancel := context.WithCancel(d.calls.Alive)
	defer cancel()
	n := d.nodeOrder()[0]
	in, _, err := n.withLogin(ctx)
	if err != nil {
		return
	}
	events := n.client.Watch(clientv3.WithRequireLeader(in), d.messagePrefix()+d.owners.Client+".", clientv3.WithPrefix(), clientv3.WithFilterDelete())
	for up, changed := d.states.Up(n.place); up; {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return
			}
			for _, e := range resp.Events {
				alert(strings.TrimPrefix(string(e.Kv.Key), d.messagePrefix()), string(e.Kv.Value))
			}
		case <-changed:
			up, changed = d.states.Up(n.place)
		case <-ctx.Done():
			return
		}
	}
}

// Inspect implements driver.Inspector. Status.Nodes has the state of each member.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	l, err := d.readQueue(ctx, key)
	st := d.lockStatus(ctx, key, l)
	st.Nodes = make([]driver.NodeView, len(d.nodes))
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() {
			view := &st.Nodes[n.place]
			view.Node = n.name
			view.Err = n.tryRequest(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error {
				resp, err := c.Get(ctx, d.folderOf(key), append(clientv3.WithFirstCreate(), clientv3.WithSerializable())...)
				if err == nil {
					l := queueOf(resp)
					view.Owner, view.Token, view.Waiters = l.first.owner, l.first.token, l.waiterCount()
				}
				return err
			})
			if view.Owner == st.Owner {
				view.Remaining = st.Remaining
			}
		})
	}
	all.Wait()
	return st, err
}

// Queue implements driver.Queuer.
func (d *Driver) Queue(ctx context.Context, key string, limit int) (waiters []driver.Waiter, err error) {
	err = d.callAny(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Get(ctx, d.folderOf(key), clientv3.WithPrefix(), clientv3.WithLimit(int64(limit)+1),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs[min(1, len(resp.Kvs)):] { // the first key has the lock
			e := readEntry(kv)
			waiters = append(waiters, driver.Waiter{Owner: e.owner, Holder: e.value.Holder, Since: e.value.Since})
		}
		return nil
	})
	return waiters, err
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	locks := make(map[string]*waitQueue)
	err := d.eachKey(ctx, d.prefix+escapeName(prefix), func(e entry) {
		name, ok := d.nameOf(e.key)
		if !ok {
			return // a key of another program
		}
		if locks[name] == nil {
			locks[name] = &waitQueue{}
		}
		locks[name].add(e)
	})
	if err != nil {
		return err
	}
	for name, l := range locks {
		if !yield(d.lockStatus(ctx, name, *l)) {
			break
		}
	}
	return nil
}

// eachKey calls found for each key that begins with prefix, all at one revision.
func (d *Driver) eachKey(ctx context.Context, prefix string, found func(entry)) error {
	from, end, revision := prefix, clientv3.GetPrefixRangeEnd(prefix), int64(0)
	for {
		var page *clientv3.GetResponse
		err := d.callAny(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) (err error) {
			page, err = c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(pageSize))
			return err
		})
		if err != nil {
			return err
		}
		if hasForeignKey(page.Kvs, from) {
			return &driver.UnavailableError{Err: errors.New("the answer is not in the form of etcd's: a page has keys of the one before")}
		}
		for _, kv := range page.Kvs {
			found(readEntry(kv))
		}
		if !page.More {
			return nil
		}
		revision, from = page.Header.Revision, string(page.Kvs[len(page.Kvs)-1].Key)+"\x00"
	}
}

// lockStatus returns the driver.Status of a lock.
func (d *Driver) lockStatus(ctx context.Context, key string, l waitQueue) driver.Status {
	st := driver.Status{Key: key, Waiters: l.waiterCount()}
	if l.first.key != "" {
		st.Held, st.Kept, st.Owner, st.Token = true, l.first.value.Kept, l.first.owner, l.first.token
		st.Holder, st.Since = l.first.value.Holder, l.first.value.Since
		st.Remaining, _ = d.leaseRemaining(ctx, l.first.lease)
	}
	return st
}

// leaseRemaining returns the time until a lease ends unless it is renewed; 0: unknown.
func (d *Driver) leaseRemaining(ctx context.Context, lease clientv3.LeaseID) (time.Duration, error) {
	if lease == clientv3.NoLease {
		return -1, nil // a key of another program
	}
	var left time.Duration
	err := d.callAny(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.TimeToLive(ctx, lease)
		if err == nil {
			left = secondsDuration(max(resp.TTL, 0))
		}
		return err
	})
	return left, err
}

// Nodes implements driver.Notifier.
func (d *Driver) Nodes() []driver.NodeEvent { return d.states.Nodes() }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) { d.states.Notify(fn) }
