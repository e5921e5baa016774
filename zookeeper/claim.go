package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"math"
	"path"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

const (
	// maxCuts bounds the immediate retries of a claim after its connection ended.
	maxCuts = 3
	// maxTurns bounds the immediate reads of a changed queue. After them the claim pauses between reads, until
	// it waits for a node again. Without the bound, it would ask contradictory members endlessly.
	maxTurns = 16
)

var (
	// errUnstableQueue reports that a claim has read its queue too often.
	errUnstableQueue = errors.New("its queue changes at each read")
	// errInvalidAnswer reports an answer that no correct server gives.
	errInvalidAnswer = errors.New("a server's answer contradicts the request")
)

// errNumbersUsedUp makes a claim wait until the folder of its lock is empty.
var errNumbersUsedUp = errors.New("the sequence numbers of this lock are used up; they start again once nobody holds it or waits for it")

// claim is one attempt to acquire a lock.
type claim struct {
	d     *Driver
	req   driver.Request
	s     *session // nil: none yet
	owner string
	doubt bool   // a request to create the node got no answer
	path  string // path of the node; empty: not known to exist
	czxid int64  // czxid of the node; 0: unknown
	cuts  int    // number of cuts of the connection after which it retried at once
	turns int    // number of reads since it waited for a node
	wait  driverkit.Wait
}

// acquireLock makes the steps of the claim until the lock is granted or an error ends the attempt.
func (c *claim) acquireLock(ctx context.Context) error {
	return c.wait.RetryUntilWon(ctx, c.d.calls, c.req.NoWait, func(ctx context.Context) error {
		err := c.tryStep(ctx)
		switch {
		case errors.Is(err, errOver):
			c.forgetSession()
			err = driverkit.ErrRetryNow
		case errors.Is(err, errCut) && c.cuts < maxCuts: // another member may be up
			c.cuts++
			err = driverkit.ErrRetryNow
		case err == nil:
			return nil
		}
		if !errors.Is(err, driverkit.ErrRetryNow) {
			return c.d.callerError(err)
		}
		if c.turns++; c.turns > maxTurns {
			return c.d.states.Unavailable(errUnstableQueue)
		}
		return err
	})
}

// callerError converts an error for the caller. A request that the servers reject is no fault of a member.
func (d *Driver) callerError(err error) error {
	switch {
	case errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrUnavailable), errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrLost):
		return err
	}
	return &driver.UnavailableError{Err: err}
}

// forgetSession drops a session that is over, and the node in it.
func (c *claim) forgetSession() {
	if c.s != nil {
		c.d.releaseSession(c.s)
	}
	c.s, c.doubt, c.path, c.czxid = nil, false, "", 0
}

// tryStep makes the next step and returns nil once the claim has the lock.
func (c *claim) tryStep(ctx context.Context) error {
	return driverkit.TakeTurn(ctx, c.d.lane, c.req, c.doubt || c.path != "", c.requestMissing, c.awaitTurn)
}

// watches holds the events that a waiting claim waits for.
type watches struct {
	gone <-chan struct{}   // closed when the node before its own is deleted
	own  <-chan struct{}   // closed when its own node is deleted
	held *driver.HeldError // names the holder
}

// requestMissing requests what the claim lacks: a session, a node, the lock. If there is no error and nothing
// to wait for, the claim has the lock.
func (c *claim) requestMissing(ctx context.Context) (*watches, error) {
	if c.s == nil {
		c.s, c.owner = c.d.sessionFor(c.req.TTL), c.d.owners.Next(false)
	}
	switch {
	case c.doubt:
		return nil, c.findNode(ctx)
	case c.path == "":
		return c.createNode(ctx)
	}
	if e, _ := readEntry(path.Base(c.path)); hasUsedUpNumbers(e.seq) {
		return nil, c.restartNumbers(ctx)
	}
	return c.readQueue(ctx)
}

// createNode creates the claim's node and reads the line in the same transaction. If the caller does not wait,
// it reads the line first, so that a failed attempt changes nothing.
func (c *claim) createNode(ctx context.Context) (*watches, error) {
	folder := c.d.folderOf(c.req.Key)
	if c.req.NoWait {
		r := getChildren(folder)
		if err := c.s.sendAll(ctx, r); err != nil {
			return nil, err
		}
		if r.err == nil {
			l, err := r.lineEntries()
			switch {
			case err != nil:
				return nil, c.d.states.Unavailable(errInvalidAnswer)
			case len(l) > 0:
				return nil, c.heldBy(ctx, l)
			}
		}
	}
	for made := false; ; made = true {
		own := createRequest(folder+"/"+c.owner+"-", value{c.req.Holder, time.Now(), c.req.TTL}.text(), c.d.acl)
		others := getChildren(folder)
		c.doubt = true
		if err := c.s.sendAll(ctx, own, others); err != nil {
			return nil, err
		}
		if own.err == nil {
			path, at := own.reply.text(), own.reply.stat().czxid
			if !strings.HasPrefix(path, folder+"/"+c.owner+"-") {
				return nil, c.d.states.Unavailable(errInvalidAnswer)
			}
			c.path, c.czxid = path, at
		}
		c.doubt = false
		switch {
		case errors.Is(own.err, codeNoNode) && made: // the folder was deleted
			return nil, driverkit.ErrRetryNow
		case errors.Is(own.err, codeNoNode):
			if err := c.d.makeFolder(ctx, c.s, folder); err != nil {
				return nil, err
			}
			continue
		case own.err != nil || others.err != nil:
			return nil, c.d.refusedError(cmp.Or(own.err, others.err))
		}
		l, err := others.lineEntries()
		return c.takePlaceIfRead(ctx, l, err)
	}
}

// restartNumbers makes the servers count from 0 again, as they do in a new folder. They delete the old folder
// once all claims with a number in it have ended. Until then the claim deletes its node and waits.
func (c *claim) restartNumbers(ctx context.Context) error {
	if err := c.s.removeOnce(ctx, c.path); err != nil {
		return err
	}
	c.path, c.czxid = "", 0
	r := removeRequest(c.d.folderOf(c.req.Key))
	if err := c.s.sendAll(ctx, r); err != nil || r.err == nil {
		return cmp.Or(err, driverkit.ErrRetryNow)
	}
	return c.d.states.Unavailable(errNumbersUsedUp)
}

// makeFolder creates the folder of a lock and its parents.
func (d *Driver) makeFolder(ctx context.Context, s *session, folder string) error {
	var all []*request
	for i := range folder {
		if i > 0 && folder[i] == '/' {
			acl := everybody // parents of the locks' path are not for this user alone
			if i >= len(d.root) {
				acl = d.acl
			}
			all = append(all, persistentRequest(folder[:i], acl))
		}
	}
	last := containerRequest(folder, d.acl)
	if err := s.sendAll(ctx, last); err != nil {
		return err
	}
	if errors.Is(last.err, codeNoNode) {
		last = containerRequest(folder, d.acl)
		if err := s.sendAll(ctx, append(all, last)...); err != nil {
			return err
		}
	}
	for _, r := range append(all, last) {
		if r.err != nil && !errors.Is(r.err, codeNodeExists) && !errors.Is(last.err, codeNodeExists) && last.err != nil {
			return d.refusedError(r.err)
		}
	}
	return nil
}

// findNode looks for a node whose creation got no answer. It reads behind a sync, because the member that has
// just taken over the session may lag. If it finds no node, the claim continues under another owner: a node
// that is created later then belongs to no claim.
func (c *claim) findNode(ctx context.Context) error {
	folder := c.d.folderOf(c.req.Key)
	all := getChildren(folder)
	if err := c.s.sendAll(ctx, syncWith(folder), all); err != nil {
		return err
	}
	switch {
	case all.err == nil:
	case errors.Is(all.err, codeNoNode):
	default:
		return c.d.refusedError(all.err)
	}
	if all.err == nil {
		for name := range all.reply.names() {
			if e, ok := readEntry(name); ok && e.owner() == c.owner { // with any number
				c.path = folder + "/" + name
			}
		}
		if all.reply.err != nil {
			return c.d.states.Unavailable(errInvalidAnswer)
		}
	}
	c.doubt = false
	if c.path == "" {
		c.s.noteStray(c.owner, folder)
		c.owner = c.d.owners.Next(false)
	}
	return driverkit.ErrRetryNow
}

// readQueue checks that the node still exists and reads the line. One read is enough if the session is trusted
// for long enough: then the node exists, and a claim that is first stays first.
func (c *claim) readQueue(ctx context.Context) (*watches, error) {
	folder := c.d.folderOf(c.req.Key)
	all := getChildren(folder)
	if c.czxid != 0 && c.isFresh() {
		if err := c.s.sendAll(ctx, all); err != nil {
			return nil, err
		}
		if all.err == nil {
			l, err := all.lineEntries()
			if err != nil || placeOf(c.owner, l) >= 0 {
				return c.takePlaceIfRead(ctx, l, err)
			}
		}
		all = getChildren(folder) // the node, or the folder too, was deleted
	}
	own := getData(c.path, false)
	_, exists, err := c.s.confirmNodes(ctx, []string{c.path}, all, own)
	switch {
	case err != nil:
		return nil, err
	case !exists[0]:
		c.forgetSession()
		return nil, driverkit.ErrRetryNow
	case all.err != nil, own.err != nil:
		return nil, driverkit.ErrRetryNow
	}
	own.reply.bytes()
	c.czxid = own.reply.stat().czxid
	l, err := all.lineEntries()
	return c.takePlaceIfRead(ctx, l, cmp.Or(err, own.reply.err))
}

// takePlaceIfRead returns err, or calls takePlace if the line could be read.
func (c *claim) takePlaceIfRead(ctx context.Context, l []entry, err error) (*watches, error) {
	if err != nil {
		return nil, c.d.states.Unavailable(errInvalidAnswer)
	}
	return c.takePlace(ctx, l)
}

// isFresh reports whether the session is trusted for most of its TTL.
func (c *claim) isFresh() bool { return time.Until(c.s.trustedUntil()) > c.req.TTL*3/4 }

// takePlace takes the lock if the claim is first in the queue. Otherwise it watches the node before its own.
func (c *claim) takePlace(ctx context.Context, l []entry) (*watches, error) {
	switch i := placeOf(c.owner, l); {
	case i < 0: // the node was deleted: the next read makes sure
		return nil, driverkit.ErrRetryNow
	case i == 0:
		return nil, c.completeGrant(ctx)
	case c.req.NoWait: // another claim was faster
		return nil, c.heldBy(ctx, l)
	default:
		return c.watchQueue(ctx, l, i)
	}
}

// completeGrant completes the claim as the holder. The session may be old by now.
func (c *claim) completeGrant(ctx context.Context) error {
	if c.czxid <= 0 || c.czxid > math.MaxInt64/driverkit.Block { // outside the range of tokens
		return c.d.states.Unavailable(errInvalidAnswer)
	}
	if c.isFresh() {
		return nil
	}
	_, exists, err := c.s.confirmNodes(ctx, []string{c.path})
	switch {
	case err != nil:
		return err
	case !exists[0]:
		c.forgetSession()
		return driverkit.ErrRetryNow
	case time.Now().After(c.s.trustedUntil()):
		return c.d.states.Unavailable(errors.New("the answer came too late"))
	}
	return nil
}

// newGrant returns the grant of the claim.
func (c *claim) newGrant() driver.Grant {
	g := driver.Grant{
		Key: c.req.Key, Owner: c.owner, Token: tokenOf(c.czxid), Block: driverkit.Block,
		TTL: c.s.ttl, TrustedUntil: c.s.trustedUntil(),
	}
	c.d.addHold(g, c.s, c.path)
	return g
}

// watchQueue sets watches on the claim's own node and the one before it, and reads the holder. If the holder
// has just gone, the next node in line is the holder: a waiter always reports an obstacle (driver: Obstacle).
func (c *claim) watchQueue(ctx context.Context, l []entry, place int) (*watches, error) {
	folder := c.d.folderOf(c.req.Key)
	before := folder + "/" + l[place-1].name
	gone, own := c.s.watchPath(before), c.s.watchPath(c.path)
	watched, self, first := getData(before, true), getData(c.path, true), getData(folder+"/"+l[0].name, false)
	err := c.s.sendAll(ctx, watched, self, first)
	if err != nil {
		return nil, err
	}
	for path, r := range map[string]*request{before: watched, c.path: self} {
		switch {
		case r.err == nil:
			continue
		case errors.Is(r.err, codeNoNode): // the servers do not watch a missing node
			err = cmp.Or(err, driverkit.ErrRetryNow)
		default:
			err = c.d.refusedError(r.err)
		}
		c.s.fireWatches(path)
	}
	if err != nil {
		return nil, err
	}
	known := first.err == nil
	if errors.Is(first.err, codeNoNode) {
		l, first, known = l[1:], watched, place == 2
	}
	held := &driver.HeldError{Owner: l[0].owner(), Waiters: len(l) - 2} // without the holder and the claim itself
	if known {
		v := readValue(first.reply.bytes())
		held.Holder, held.Since, held.Remaining = v.Holder, v.Since, v.TTL
	}
	return &watches{gone, own, held}, nil
}

// awaitTurn waits until one of the two nodes is deleted, or the connection ends and takes the watches with it.
func (c *claim) awaitTurn(ctx context.Context, w *watches) error {
	c.turns = 0
	c.wait.SetObstacle(w.held)
	select {
	case <-w.gone:
	case <-w.own:
	case <-c.s.quit.Done():
	case <-ctx.Done():
	}
	return driverkit.ErrRetryNow
}

// heldBy returns a HeldError for the first entry of the queue.
func (c *claim) heldBy(ctx context.Context, l []entry) error {
	held := &driver.HeldError{Owner: l[0].owner(), Waiters: len(l) - 1}
	if c.path != "" {
		held.Waiters-- // do not count the claim itself
	}
	r := getData(c.d.folderOf(c.req.Key)+"/"+l[0].name, false)
	if err := c.s.sendAll(ctx, r); err != nil {
		return err
	}
	if r.err == nil {
		v := readValue(r.reply.bytes())
		held.Holder, held.Since, held.Remaining = v.Holder, v.Since, v.TTL
	}
	return held
}

// abandon deletes in the background the nodes that the claim may have left. Nodes that it cannot delete end
// with the session.
func (c *claim) abandon() {
	if c.s == nil {
		return
	}
	c.d.calls.Go(func() {
		defer c.d.releaseSession(c.s)
		ctx := c.d.calls.Work
		for c.doubt {
			err := c.d.lane.RetryUnanswered(ctx, func() {}, func() error { return c.findNode(ctx) })
			if !errors.Is(err, driverkit.ErrRetryNow) {
				return // the session is over
			}
		}
		if c.path != "" {
			c.s.deleteNode(ctx, c.path, func() {})
		}
	})
}

// deleteNode deletes a node. It returns nil once the node is gone. Before each request it waits for its turn
// in the lane and calls begun.
func (s *session) deleteNode(ctx context.Context, path string, begun func()) error {
	err := s.d.lane.RetryUnanswered(ctx, begun, func() error { return s.removeOnce(ctx, path) })
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}

// removeOnce sends one request to delete a node. It returns nil if the node is gone.
func (s *session) removeOnce(ctx context.Context, path string) error {
	r := removeRequest(path)
	if err := s.sendAll(ctx, r); err != nil {
		return err
	}
	if errors.Is(r.err, codeNoNode) {
		return nil
	}
	return s.d.refusedError(r.err)
}
