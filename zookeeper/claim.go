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
	// maxCuts bounds the attempts of a claim that go on at once after its connection has ended.
	maxCuts = 3
	// maxTurns bounds how often a claim looks at once because its line has changed. Then it looks with pauses, until it waits for a node
	// again: members that contradict themselves would be asked without end otherwise.
	maxTurns = 16
)

var (
	// errRestless stands in the way of a claim that has looked too often.
	errRestless = errors.New("its queue changes at each read")
	// errSenseless reports an answer that no server gives.
	errSenseless = errors.New("a server's answer contradicts the request")
)

// errSpent stands in the way of a claim until the folder of its lock is empty.
var errSpent = errors.New("the sequence numbers of this lock are used up; they start again once nobody holds it or waits for it")

// claim is one attempt at a lock.
type claim struct {
	d     *Driver
	req   driver.Request
	s     *session // nil: none yet
	owner string
	doubt bool   // a request to create the node had no answer
	path  string // of the node; empty: it is not known to exist
	czxid int64  // of the node; 0: not known
	cuts  int    // of the connection, after which it went on at once
	turns int    // since it waited for a node
	wait  driverkit.Wait
}

// acquireLock goes on until the lock is granted or that is out of the question.
func (c *claim) acquireLock(ctx context.Context) error {
	return c.wait.Compete(ctx, c.d.calls, c.req.NoWait, func(ctx context.Context) error {
		err := c.tryStep(ctx)
		switch {
		case errors.Is(err, errOver):
			c.forgetSession()
			err = driverkit.ErrAgain
		case errors.Is(err, errCut) && c.cuts < maxCuts: // another member may be there
			c.cuts++
			err = driverkit.ErrAgain
		case err == nil:
			return nil
		}
		if !errors.Is(err, driverkit.ErrAgain) {
			return c.d.callerError(err)
		}
		if c.turns++; c.turns > maxTurns {
			return c.d.states.Unavailable(errRestless)
		}
		return err
	})
}

// callerError returns an error in the form for the caller. What the servers refuse is no fault of a member.
func (d *Driver) callerError(err error) error {
	switch {
	case errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrUnavailable), errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrLost):
		return err
	}
	return &driver.UnavailableError{Err: err}
}

// forgetSession forgets a session that is over, and the place in line with it.
func (c *claim) forgetSession() {
	if c.s != nil {
		c.d.releaseSession(c.s)
	}
	c.s, c.doubt, c.path, c.czxid = nil, false, "", 0
}

// tryStep does what is to be done next, and returns nil when the claim has the lock. Others wait behind a node that it has.
func (c *claim) tryStep(ctx context.Context) error {
	return driverkit.TakeTurn(ctx, c.d.lane, c.req, c.doubt || c.path != "", c.requestMissing, c.awaitTurn)
}

// watches has what a claim waits for while it is not first in line.
type watches struct {
	gone <-chan struct{}   // the node before it is deleted
	own  <-chan struct{}   // its own is
	held *driver.HeldError // the holder
}

// requestMissing gets what the claim lacks: a session, a node, the lock. It has the lock if there is neither
// an error nor anything to wait for.
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
	if e, _ := readEntry(path.Base(c.path)); isSpent(e.seq) {
		return nil, c.restartNumbers(ctx)
	}
	return c.readLine(ctx)
}

// createNode creates the claim's node and reads the line in the same transaction. A try reads first, so
// that a try in vain changes nothing.
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
				return nil, c.d.states.Unavailable(errSenseless)
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
				return nil, c.d.states.Unavailable(errSenseless)
			}
			c.path, c.czxid = path, at
		}
		c.doubt = false
		switch {
		case errors.Is(own.err, codeNoNode) && made: // somebody has deleted the folder
			return nil, driverkit.ErrAgain
		case errors.Is(own.err, codeNoNode):
			if err := c.d.makeFolder(ctx, c.s, folder); err != nil {
				return nil, err
			}
			continue
		case own.err != nil || others.err != nil:
			return nil, c.d.refusedError(cmp.Or(own.err, others.err))
		}
		l, err := others.lineEntries()
		return c.placeIfRead(ctx, l, err)
	}
}

// restartNumbers has the servers count from 0 again. They do for a new folder, and delete the old one when
// all who have or want the lock by its numbers are through. Until then the claim stands aside.
func (c *claim) restartNumbers(ctx context.Context) error {
	if err := c.s.removeOnce(ctx, c.path); err != nil {
		return err
	}
	c.path, c.czxid = "", 0
	r := removeRequest(c.d.folderOf(c.req.Key))
	if err := c.s.sendAll(ctx, r); err != nil || r.err == nil {
		return cmp.Or(err, driverkit.ErrAgain)
	}
	return c.d.states.Unavailable(errSpent)
}

// makeFolder creates the folder of a lock, and what is above it.
func (d *Driver) makeFolder(ctx context.Context, s *session, folder string) error {
	var all []*request
	for i := range folder {
		if i > 0 && folder[i] == '/' {
			acl := everybody // what is above the path of the locks is not the user's alone
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

// findNode looks for a node whose creation had no answer. A member that has just taken over the
// session may know less than the one before, unless it asks the one that leads. Where there is none,
// the claim goes on under another owner: if that creation is carried out after all, nobody has the node.
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
			if e, ok := readEntry(name); ok && e.owner == c.owner { // whatever its number
				c.path = folder + "/" + name
			}
		}
		if all.reply.err != nil {
			return c.d.states.Unavailable(errSenseless)
		}
	}
	c.doubt = false
	if c.path == "" {
		c.s.noteStray(c.owner, folder)
		c.owner = c.d.owners.Next(false)
	}
	return driverkit.ErrAgain
}

// readLine checks that the node still exists and reads the line. A session that is trusted for long enough
// keeps the node, and a claim that is first stays first: then one read is enough.
func (c *claim) readLine(ctx context.Context) (*watches, error) {
	folder := c.d.folderOf(c.req.Key)
	all := getChildren(folder)
	if c.czxid != 0 && c.isFresh() {
		if err := c.s.sendAll(ctx, all); err != nil {
			return nil, err
		}
		if all.err == nil {
			l, err := all.lineEntries()
			if err != nil || placeOf(c.owner, l) >= 0 {
				return c.placeIfRead(ctx, l, err)
			}
		}
		all = getChildren(folder) // somebody has deleted the node, or the folder as well
	}
	own := getData(c.path, false)
	_, stands, err := c.s.confirmNodes(ctx, []string{c.path}, all, own)
	switch {
	case err != nil:
		return nil, err
	case !stands[0]:
		c.forgetSession()
		return nil, driverkit.ErrAgain
	case all.err != nil, own.err != nil:
		return nil, driverkit.ErrAgain
	}
	own.reply.bytes()
	c.czxid = own.reply.stat().czxid
	l, err := all.lineEntries()
	return c.placeIfRead(ctx, l, cmp.Or(err, own.reply.err))
}

// placeIfRead returns err, or what takePlace returns if the line could be read.
func (c *claim) placeIfRead(ctx context.Context, l []entry, err error) (*watches, error) {
	if err != nil {
		return nil, c.d.states.Unavailable(errSenseless)
	}
	return c.takePlace(ctx, l)
}

// isFresh reports whether the session is trusted for most of its TTL.
func (c *claim) isFresh() bool { return time.Until(c.s.trustedUntil()) > c.req.TTL*3/4 }

// takePlace takes the lock if the claim is the first in line, and watches the node before it otherwise.
func (c *claim) takePlace(ctx context.Context, l []entry) (*watches, error) {
	switch i := placeOf(c.owner, l); {
	case i < 0: // somebody has deleted the node: the next look makes sure
		return nil, driverkit.ErrAgain
	case i == 0:
		return nil, c.completeGrant(ctx)
	case c.req.NoWait: // another one was faster
		return nil, c.heldBy(ctx, l)
	default:
		return c.watchLine(ctx, l, i)
	}
}

// completeGrant completes the claim as the holder. The session may be old by now.
func (c *claim) completeGrant(ctx context.Context) error {
	if c.czxid <= 0 || c.czxid > math.MaxInt64/driverkit.Block { // of which there is no token
		return c.d.states.Unavailable(errSenseless)
	}
	if c.isFresh() {
		return nil
	}
	_, stands, err := c.s.confirmNodes(ctx, []string{c.path})
	switch {
	case err != nil:
		return err
	case !stands[0]:
		c.forgetSession()
		return driverkit.ErrAgain
	case time.Now().After(c.s.trustedUntil()):
		return c.d.states.Unavailable(errors.New("the answer came too late"))
	}
	return nil
}

// newGrant returns the lock that the claim has.
func (c *claim) newGrant() driver.Grant {
	g := driver.Grant{
		Key: c.req.Key, Owner: c.owner, Token: tokenOf(c.czxid), Block: driverkit.Block,
		TTL: c.s.ttl, TrustedUntil: c.s.trustedUntil(),
	}
	c.d.addHold(g, c.s, c.path)
	return g
}

// watchLine sets watches on the node before the claim's and on its own, and reads the holder. If the
// holder has just gone, the next in line is the holder: a waiter is told an obstacle in any case
// (driver: Obstacle).
func (c *claim) watchLine(ctx context.Context, l []entry, place int) (*watches, error) {
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
		case errors.Is(r.err, codeNoNode): // the servers do not watch what is not there
			err = cmp.Or(err, driverkit.ErrAgain)
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
	held := &driver.HeldError{Owner: l[0].owner, Waiters: len(l) - 2} // but for the claim itself
	if known {
		v := readValue(first.reply.bytes())
		held.Holder, held.Since, held.Remaining = v.Holder, v.Since, v.TTL
	}
	return &watches{gone, own, held}, nil
}

// awaitTurn returns when one of the nodes is deleted, and when the connection ends, with which the
// watches are gone.
func (c *claim) awaitTurn(ctx context.Context, w *watches) error {
	c.turns = 0
	c.wait.Note(w.held)
	select {
	case <-w.gone:
	case <-w.own:
	case <-c.s.quit.Done():
	case <-ctx.Done():
	}
	return driverkit.ErrAgain
}

// heldBy returns the HeldError for the first entry of the line.
func (c *claim) heldBy(ctx context.Context, l []entry) error {
	held := &driver.HeldError{Owner: l[0].owner, Waiters: len(l) - 1}
	if c.path != "" {
		held.Waiters-- // the claim itself
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

// abandon deletes, in the background, what the claim has left. What it cannot delete goes
// with the session.
func (c *claim) abandon() {
	if c.s == nil {
		return
	}
	c.d.calls.Go(func() {
		defer c.d.releaseSession(c.s)
		ctx := c.d.calls.Work
		for c.doubt {
			err := c.d.lane.Insist(ctx, func() {}, func() error { return c.findNode(ctx) })
			if !errors.Is(err, driverkit.ErrAgain) {
				return // the session is over
			}
		}
		if c.path != "" {
			c.s.deleteNode(ctx, c.path, func() {})
		}
	})
}

// deleteNode deletes a node, and returns nil when it is gone. It waits for its turn, and calls begun
// then.
func (s *session) deleteNode(ctx context.Context, path string, begun func()) error {
	err := s.d.lane.Insist(ctx, begun, func() error { return s.removeOnce(ctx, path) })
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}

// removeOnce asks once that a node be deleted, and returns nil when it is gone.
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
