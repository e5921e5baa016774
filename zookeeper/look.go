package zookeeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// lookTTL is the TTL of a session that is opened only for reads. A session with any other TTL can be used
	// too: anyTTL stands for any.
	lookTTL = 10 * time.Second
	anyTTL  = time.Duration(0)
	// pageSize is the number of locks that List requests at once.
	pageSize = 128
)

// waitQueue is the queue of a lock: its holder and its waiters.
type waitQueue struct {
	entries []entry // the first entry has the lock
	pzxid   int64   // zxid of the last change
	first   value
	token   int64
	node    string // path of the first node
}

func (l waitQueue) owner() string {
	if len(l.entries) == 0 {
		return ""
	}
	return l.entries[0].owner()
}

func (l waitQueue) waiterCount() int { return max(len(l.entries)-1, 0) }

// withSession calls fn with an open session, or else with a new one for reads. It repeats that until fn has
// reached a member or all members have failed.
func (d *Driver) withSession(ctx context.Context, fn func(context.Context, *session) error) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	ctx, cancel := driverkit.WithLimit(ctx, pace.LookTime())
	defer cancel()
	for pause := time.Duration(0); ; pause = min(max(2*pause, pace.ShortPause), pace.LongPause) {
		s := d.anySession()
		err := fn(ctx, s)
		d.releaseSession(s)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errOver), errors.Is(err, errCut): // the next session has another connection
			if driverkit.Sleep(ctx, pause) {
				continue
			}
			return fmt.Errorf("%w: %w", ctx.Err(), d.callerError(err))
		case ctx.Err() != nil:
			return err
		}
		return d.callerError(err)
	}
}

// anySession returns any open session.
func (d *Driver) anySession() *session {
	d.mu.Lock()
	ttl := anyTTL
	for t, some := range d.sessions {
		if slices.ContainsFunc(some, (*session).isConnected) {
			ttl = t
			break
		}
	}
	d.mu.Unlock()
	return d.sessionFor(ttl)
}

func (s *session) isConnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link != nil
}

// lookUp reads the queue of a lock, in a state not older than this call.
func (d *Driver) lookUp(ctx context.Context, name string) (l waitQueue, err error) {
	err = d.withSession(ctx, func(ctx context.Context, s *session) error {
		folder := d.folderOf(name)
		for pause := time.Duration(0); ; pause = min(max(2*pause, pace.ShortPause), pace.LongPause) {
			all := getChildren(folder)
			if err := s.sendAll(ctx, syncWith(d.root), all); err != nil {
				return err
			}
			if l, err = d.waitQueueOf(folder, all); err != nil || l.node == "" {
				return err
			}
			first := getData(l.node, false)
			if err := s.sendAll(ctx, first); err != nil {
				return err
			}
			if there, err := l.addFirst(first); err != nil {
				return d.refusedError(err)
			} else if there {
				return nil
			}
			if !driverkit.Sleep(ctx, pause) {
				return d.unansweredError(ctx)
			}
		}
	})
	return l, err
}

// waitQueueOf decodes the queue from the children of a folder.
func (d *Driver) waitQueueOf(folder string, all *request) (l waitQueue, err error) {
	switch {
	case errors.Is(all.err, codeNoNode):
		return l, nil
	case all.err != nil:
		return l, d.refusedError(all.err)
	}
	if l.entries, err = all.lineEntries(); err != nil {
		return l, d.states.Unavailable(errInvalidAnswer)
	}
	l.pzxid = all.reply.stat().pzxid
	if len(l.entries) > 0 {
		l.node = folder + "/" + l.entries[0].name
	}
	return l, nil
}

// addFirst adds the data of the first node; false: the node is gone.
func (l *waitQueue) addFirst(first *request) (bool, error) {
	switch {
	case errors.Is(first.err, codeNoNode):
		return false, nil
	case first.err != nil:
		return false, first.err
	}
	l.first = readValue(first.reply.bytes())
	l.token = tokenOf(first.reply.stat().czxid)
	return true, first.reply.err
}

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	l, err := d.lookUp(ctx, g.Key)
	if err == nil && l.owner() != g.Owner {
		err = d.lossReason(g.Owner)
	}
	return err
}

// lossReason returns the reason why an owner lost its lock, as far as the driver knows.
func (d *Driver) lossReason(owner string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.holds[owner]; h != nil && h.s.isOver() {
		return errEnded
	}
	return driver.ErrLost
}

// message is the note of a Force for the former holder, in the folder of the lock.
type message struct {
	Owner string `json:"forced"`
	Why   string `json:"why"`
}

// Force implements driver.Forcer. The name of the deleted node is never used again.
func (d *Driver) Force(ctx context.Context, key string, token int64, reason string) (done bool, err error) {
	l, err := d.lookUp(ctx, key)
	if err != nil || l.node == "" || !driverkit.InBlock(l.token, token) {
		return false, err
	}
	text, _ := json.Marshal(message{l.owner(), reason}) // cannot fail: strings
	tries := 0
	err = d.withSession(ctx, func(ctx context.Context, s *session) error {
		tries++
		r := forceRequest(l.node, d.folderOf(key), string(text))
		if err := s.sendAll(ctx, r); err != nil {
			return err
		}
		if r.err != nil {
			return d.refusedError(r.err)
		}
		outcomes, err := r.errorCodes(2)
		switch {
		case err != nil:
			return d.states.Unavailable(err)
		case outcomes[0] == codeNoNode:
			done = tries > 1 // the attempt before may have succeeded
			return nil
		}
		done = outcomes[0] == 0 && outcomes[1] == 0
		if c := cmp.Or(outcomes...); c != 0 {
			return d.refusedError(c)
		}
		return nil
	})
	return done, err
}

// Alert implements driver.Alerter. The driver also raises the alert when a node was deleted by hand, or when a
// session is over.
func (d *Driver) Alert(fn func(owner, reason string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alert = fn
}

// watchHold waits for the deletion of a hold's node, and then alerts the client. It returns the request that
// sets the watch on the servers, or nil if there is one.
func (d *Driver) watchHold(owner string) *request {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.holds[owner]
	if h == nil || h.heeded || d.alert == nil || d.calls.Enter() != nil {
		return nil
	}
	h.heeded = true
	gone, alert := h.s.watchPath(h.path), d.alert
	go func() {
		defer d.calls.Leave()
		select {
		case <-gone:
		case <-h.over:
			return
		case <-d.calls.Alive.Done():
			return
		}
		d.mu.Lock()
		h.heeded = false // the connection may have ended; the next renewal watches again
		stands := d.holds[owner] == h
		d.mu.Unlock()
		if !stands {
			return
		}
		ctx, cancel := driverkit.WithLimit(d.calls.Alive, pace.LookTime())
		defer cancel()
		if why, gone := h.findLoss(ctx, owner); gone {
			alert(owner, why)
		}
	}()
	return getData(h.path, true)
}

// findLoss reports whether the node of a hold is gone, and why. If the connection ends, it asks again over the
// next one.
func (h *hold) findLoss(ctx context.Context, owner string) (why string, gone bool) {
	var node, folder *request
	err := driverkit.RetryUnanswered(ctx, func() error {
		node, folder = getData(h.path, false), getData(path.Dir(h.path), false)
		return h.s.sendAll(ctx, node, folder)
	})
	switch {
	case errors.Is(err, errOver):
		return "", true
	case err != nil || !errors.Is(node.err, codeNoNode):
		return "", false
	}
	var m message
	if folder.err == nil && json.Unmarshal(folder.reply.bytes(), &m) == nil && m.Owner == owner {
		why = m.Why
	}
	return why, true
}

// Inspect implements driver.Inspector. In Status.Nodes, a member that has the last change of the lock's queue
// has the full view.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	l, err := d.lookUp(ctx, key)
	st := l.status(key)
	st.Nodes = make([]driver.NodeView, len(d.members))
	var all sync.WaitGroup
	for _, m := range d.members {
		all.Go(func() {
			h, failed := d.askMember(ctx, m, pace.CallTime())
			view := &st.Nodes[m.place]
			*view = driver.NodeView{Node: m.name, Owner: st.Owner, Token: st.Token, Remaining: st.Remaining, Waiters: st.Waiters}
			switch {
			case failed == nil && h.mode == "":
				failed = errSilent
			case failed == nil && h.zxid < l.pzxid:
				failed = errors.New("it does not have the last change yet")
			}
			if failed != nil || err != nil {
				*view = driver.NodeView{Node: m.name, Err: failed}
			}
		})
	}
	all.Wait()
	if err == nil && ctx.Err() != nil {
		err = d.unansweredError(ctx)
	}
	return st, err
}

// status returns the driver.Status of the lock. The servers do not show the remaining time of a session: it is
// its TTL at most.
func (l waitQueue) status(key string) driver.Status {
	st := driver.Status{Key: key, Waiters: l.waiterCount()}
	if l.node != "" {
		st.Held, st.Owner, st.Token = true, l.owner(), l.token
		st.Holder, st.Since, st.Remaining = l.first.Holder, l.first.Since, l.first.TTL
	}
	return st
}

// Queue implements driver.Queuer.
func (d *Driver) Queue(ctx context.Context, key string, limit int) (waiters []driver.Waiter, err error) {
	l, err := d.lookUp(ctx, key)
	if err != nil || l.waiterCount() == 0 {
		return nil, err
	}
	err = d.withSession(ctx, func(ctx context.Context, s *session) error {
		waiters = nil
		var all []*request
		queue := l.entries[1:min(len(l.entries), limit+1)]
		for _, e := range queue {
			all = append(all, getData(d.folderOf(key)+"/"+e.name, false))
		}
		if err := s.sendAll(ctx, all...); err != nil {
			return err
		}
		for i, r := range all {
			if r.err != nil {
				continue // the waiter has left meanwhile
			}
			v := readValue(r.reply.bytes())
			waiters = append(waiters, driver.Waiter{Owner: queue[i].owner(), Holder: v.Holder, Since: v.Since})
		}
		return nil
	})
	return waiters, err
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	var names []string
	err := d.withSession(ctx, func(ctx context.Context, s *session) error {
		all := listRequest(d.root)
		if err := s.sendAll(ctx, syncWith(d.root), all); err != nil {
			return err
		}
		if all.err != nil && !errors.Is(all.err, codeNoNode) {
			return d.refusedError(all.err)
		}
		if all.err == nil {
			names = slices.Collect(all.reply.names())
		}
		if all.reply.err != nil {
			return d.states.Unavailable(errInvalidAnswer)
		}
		return nil
	})
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(part string) bool {
		name, ok := nameOf(part)
		return !ok || !strings.HasPrefix(name, prefix)
	})
	for page := range slices.Chunk(names, pageSize) {
		found, err := d.statusPage(ctx, page)
		if err != nil {
			return err
		}
		for _, st := range found {
			if !yield(st) {
				return nil
			}
		}
	}
	return nil
}

// statusPage returns the status of each lock in parts that is held.
func (d *Driver) statusPage(ctx context.Context, parts []string) (found []driver.Status, err error) {
	err = d.withSession(ctx, func(ctx context.Context, s *session) error {
		found = nil
		var folders, firsts []*request
		for _, part := range parts {
			folders = append(folders, listRequest(d.root+"/"+part))
		}
		if err := s.sendAll(ctx, folders...); err != nil {
			return err
		}
		lines := make([]waitQueue, len(parts))
		for i, part := range parts {
			if lines[i], err = d.waitQueueOf(d.root+"/"+part, folders[i]); err != nil {
				return err
			}
		}
		var held []int // indices of parts
		for i, l := range lines {
			if l.node != "" {
				held, firsts = append(held, i), append(firsts, getData(l.node, false))
			}
		}
		if err := s.sendAll(ctx, firsts...); err != nil {
			return err
		}
		for n, i := range held {
			if there, err := lines[i].addFirst(firsts[n]); err == nil && there {
				name, _ := nameOf(parts[i])
				found = append(found, lines[i].status(name))
			}
		}
		return nil
	})
	return found, err
}
