package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const (
	scanCount = 250 // keys in one step: a tenth of a millisecond or two for the server
	listBatch = 100 // locks in one request
)

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	return d.engine.Check(g, d.fetchViews(ctx, d.opts.lockKeys(g.Key)))
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	lock := d.opts.lockKeys(key)
	st, err := d.makeStatus(lock, d.fetchViews(ctx, lock))
	if err == nil && st.Owner != "" {
		st.Holder = d.holderOn(ctx, st)
	}
	return st, err
}

// makeStatus combines the views of the nodes into the status of a lock.
func (d *Driver) makeStatus(lock engine.Lock, views []engine.View) (driver.Status, error) {
	st, err := d.engine.Status(lock.Name, views)
	for i, n := range d.set.votersOf(lock) {
		st.Nodes[i].Node = n.addr
	}
	return st, err
}

// holderOn returns the holder of a lock, with what its nodes know about it.
func (d *Driver) holderOn(ctx context.Context, st driver.Status) driver.Holder {
	lock := d.opts.lockKeys(st.Key)
	fields := d.opts.format().Fields(lock.Key, st.Owner)
	if fields == nil {
		return d.describeHolder(ctx, st.Owner)
	}
	i := slices.IndexFunc(st.Nodes, func(n driver.NodeView) bool { return n.Owner == st.Owner })
	ctx, cancel := context.WithTimeout(ctx, pace.AskTime())
	defer cancel()
	nodes := d.set.votersOf(lock)
	if i >= len(nodes) {
		return format.DescribeForeign(st.Owner)
	}
	replies, err := nodes[i].runCommands(ctx, fields)
	if err == nil {
		if h, ok := format.ParseThreads(replies[0]); ok {
			return h
		}
	}
	return format.DescribeForeign(st.Owner)
}

// Queue implements driver.Queuer. It uses the order of the node with the longest queue, because the other
// queues lack a waiter. With ErrUnavailable it returns the waiters of the nodes that have answered.
func (d *Driver) Queue(ctx context.Context, key string, limit int) ([]driver.Waiter, error) {
	lock := d.opts.lockKeys(key)
	nodes := d.set.votersOf(lock)
	lists, u := make([][]string, len(nodes)), &driver.UnavailableError{Need: quorum.Majority(len(nodes))}
	errs := make([]error, len(nodes))
	eachNode(ctx, nodes, func(ctx context.Context, n *node) {
		lists[n.index], errs[n.index] = n.readQueue(ctx, lock, limit)
	})
	var longest []string
	for i, n := range nodes {
		if errs[i] != nil {
			u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: errs[i]})
		}
		if len(lists[i]) > len(longest) {
			longest = lists[i]
		}
	}
	waiters := make([]driver.Waiter, len(longest))
	var all sync.WaitGroup
	for i, owner := range longest {
		all.Go(func() {
			waiters[i] = driver.Waiter{Owner: owner, Holder: d.describeHolder(ctx, owner), Since: quorum.Since(owner)}
		})
	}
	all.Wait()
	if len(nodes)-len(u.Nodes) < u.Need {
		return waiters, u
	}
	return waiters, nil
}

// readQueue returns the first ids in the queue of a lock whose places have not expired. It reads as many
// places as are asked for.
func (n *node) readQueue(ctx context.Context, lock engine.Lock, most int) (owners []string, err error) {
	reply, err := n.evalScript(ctx, []string{"ZRANGEBYSCORE", lock.Queue, "(0", "+inf", "LIMIT", "0", strconv.Itoa(most)})
	list, _ := reply.([]any)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	cmds := [][]string{{"TIME"}}
	for _, entry := range list {
		owner, _ := entry.(string)
		owners = append(owners, owner)
		cmds = append(cmds, []string{"ZSCORE", lock.Queue, wire.ExpiryMember(owner)})
	}
	replies, err := n.runCommands(ctx, cmds...)
	if err != nil {
		return nil, err
	}
	clock, _ := replies[0].([]any)
	if len(clock) != 2 {
		return nil, resp.Unexpected(resp.ErrShape)
	}
	seconds, err := strconv.ParseFloat(fmt.Sprint(clock[0]), 64)
	if err != nil {
		return nil, resp.Unexpected(resp.ErrNumber)
	}
	alive := owners[:0]
	for i, owner := range owners {
		lapses, err := strconv.ParseFloat(fmt.Sprint(replies[1+i]), 64) // nil: the waiter has left
		if err == nil && -lapses >= seconds*1000 {
			alive = append(alive, owner)
		}
	}
	return alive, nil
}

// List implements driver.Lister. It reads the key space of every node step by step (SCAN), which takes long on
// a server full of other data, and yields the locks of each step before it continues. If too few nodes answer,
// it yields the locks that the others know, and then the error.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	l := &listCall{d: d, prefix: prefix, yield: yield, seen: make(map[string]bool)}
	reached := 0
	nodes := d.set.members()
	u := &driver.UnavailableError{Need: d.set.neededAnswers(len(nodes))}
	for _, n := range nodes {
		switch err := l.listNode(ctx, n); {
		case errors.Is(err, errStopped):
			return nil
		case errors.As(err, new(*scanError)):
			u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: errors.Unwrap(err)})
		case err != nil:
			return err
		default:
			reached++
		}
	}
	if reached < u.Need {
		return u
	}
	return l.vague
}

// errStopped ends a listing whose caller needs no further locks.
var errStopped = errors.New("stopped")

// scanError is the error of a node whose keys cannot be read.
type scanError struct{ error }

func (e *scanError) Unwrap() error { return e.error }

// listCall is one call of List.
type listCall struct {
	d      *Driver
	prefix string
	yield  func(driver.Status) bool
	seen   map[string]bool
	vague  error // error of the first lock about which too few nodes have answered
}

// listNode lists the locks that a node may know. Bare keys are mixed with other data: of these it lists the
// keys with an owner or a waiter of Holdfast.
func (l *listCall) listNode(ctx context.Context, n *node) error {
	o := &l.d.opts
	pattern := format.EscapeGlob(o.Prefix+l.prefix) + "*"
	for cursor := ""; cursor != "0"; {
		next, keys, err := n.scanKeys(ctx, cmp.Or(cursor, "0"), pattern)
		if err != nil {
			return &scanError{err}
		}
		cursor = next
		var locks []engine.Lock
		for _, key := range keys {
			if name, ok := o.nameOf(key); ok && strings.HasPrefix(name, l.prefix) && !l.seen[name] {
				l.seen[name] = true
				locks = append(locks, o.lockKeys(name))
			}
		}
		for batch := range slices.Chunk(locks, listBatch) {
			if err := l.yieldHeld(ctx, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// yieldHeld yields the locks that are held or waited for.
func (l *listCall) yieldHeld(ctx context.Context, locks []engine.Lock) error {
	all := make([]driver.Status, len(locks))
	errs := make([]error, len(locks))
	var asking sync.WaitGroup
	for i, views := range l.d.set.fetchViews(ctx, locks) {
		all[i], errs[i] = l.d.makeStatus(locks[i], views)
		if errs[i] == nil && all[i].Owner != "" {
			asking.Go(func() { all[i].Holder = l.d.holderOn(ctx, all[i]) })
		}
	}
	asking.Wait()
	for i, st := range all {
		if errs[i] != nil && !errors.Is(errs[i], driver.ErrUnavailable) {
			return errs[i]
		}
		l.vague = cmp.Or(l.vague, errs[i])
		if l.d.opts.format().OtherData(st.Owner) || l.d.opts.BareKeys && st.Waiters == 0 && quorum.ClientOf(st.Owner) == "" {
			continue
		}
		if (st.Held || st.Waiters > 0 || errs[i] != nil) && !l.yield(st) {
			return errStopped
		}
	}
	return nil
}

// scanKeys returns some keys of a node, from cursor on, and the next cursor: "0" at the end.
func (n *node) scanKeys(ctx context.Context, cursor, pattern string) (next string, keys []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pace.ScanTime())
	defer cancel()
	replies, err := n.runCommands(ctx, n.d.opts.format().Scan(cursor, pattern, strconv.Itoa(scanCount)))
	if err != nil {
		return "", nil, err
	}
	if err, ok := replies[0].(error); ok {
		if server.LacksPermission(err.Error()) {
			err = fmt.Errorf("%w: grant it +scan, without which locks cannot be listed", server.AuthError(err))
		}
		return "", nil, err
	}
	both, _ := replies[0].([]any)
	if len(both) != 2 {
		return "", nil, resp.Unexpected(resp.ErrShape)
	}
	next, ok1 := both[0].(string)
	list, ok2 := both[1].([]any)
	if !ok1 || !ok2 {
		return "", nil, resp.Unexpected(resp.ErrShape)
	}
	for _, k := range list {
		key, _ := k.(string)
		keys = append(keys, key)
	}
	return next, keys, nil
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64, reason string) (bool, error) {
	if d.opts.ReadOnly {
		return false, errReadOnly
	}
	lock := d.opts.lockKeys(key)
	views := d.fetchViews(ctx, lock)
	st, err := d.makeStatus(lock, views)
	if err != nil {
		return false, err
	}
	if kind, other := format.OtherType(st.Owner); other && token == 0 {
		return false, fmt.Errorf("%w: the lock is a key of type %s, which has no token: remove it with the program that made it", driver.ErrInvalid, kind)
	}
	if its, err := d.engine.TokenBelongs(st, views, token); !its {
		return false, err
	}
	var mu sync.Mutex // guards the results
	var done, lasting quorum.Set
	var unsure []string
	nodes := d.set.votersOf(lock)
	errs := make([]error, len(nodes))
	eachNode(ctx, nodes, func(asking context.Context, n *node) {
		link := n.link.Load()
		var reply any
		var err error
		switch {
		case !engine.IsTokenless(st.Owner):
			reply, err = n.forceLock(asking, lock, st.Owner, reason)
		case views[n.index].Owner == st.Owner:
			reply, err = n.evalScript(asking, evalshaCall(d.opts.format().Drop, lock, st.Owner))
		default:
			return
		}
		if _, ok := reply.(int64); !ok && err == nil {
			err = resp.Unexpected(resp.ErrNumber)
		}
		errs[n.index] = err
		if reply != int64(1) {
			return
		}
		err = n.confirmOnReplica(ctx, link, lock)
		mu.Lock()
		defer mu.Unlock()
		done |= quorum.Only(n.index)
		if err == nil {
			lasting |= quorum.Only(n.index)
		} else {
			unsure = append(unsure, n.addr+": "+err.Error())
		}
	})
	took, err := d.engine.ForceResult(done, errs)
	if lasts, _ := d.engine.ForceResult(lasting, errs); took && !lasts {
		return true, fmt.Errorf("%w (%s)", driver.ErrUnconfirmed, strings.Join(unsure, "; "))
	}
	return took, err
}

// forceLock takes the lock away from owner, on one node.
func (n *node) forceLock(ctx context.Context, lock engine.Lock, owner, why string) (any, error) {
	l := n.link.Load()
	if l == nil {
		return nil, n.downCause()
	}
	gate, ask := l.gateFor(nil), quorum.Ask{Kind: quorum.AskRelease, HandOver: quorum.HandOverTime(int64(n.d.opts.MaxTTL))}
	if gate.Unknown != nil {
		return nil, gate.Unknown
	}
	gate.Prepare(&ask)
	return n.evalScript(ctx, l.proof.Call(n.d.opts.format().Force, lock, owner, format.Millis(ask.HandOver), format.Decimal(ask.Least),
		format.Millis(int64(n.d.engine.NoteTime())), why))
}
