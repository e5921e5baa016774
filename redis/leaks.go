package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// Leak is a lock without a TTL. If its holder has died, it stays held forever.
type Leak struct {
	Node    string `json:"node"`
	Key     string `json:"key"`             // on the node
	Owner   string `json:"owner,omitempty"` // value of the key
	Text    string `json:"text"`            // owner of the lock, and the fix
	Fixable bool   `json:"fixable"`         // by DeleteLeak
}

const (
	leakBatch = 200 // keys in one request, so that other clients get their turn
	unreadMax = 20  // number of unreadable keys of a node from which the scan of the node ends
)

// leakLua deletes a key that still has the same value and no TTL.
const leakLua = `if redis.call('PTTL', KEYS[1]) ~= -1 or redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`

// Leaks yields the locks on the nodes that have no TTL. Usually other libraries have made them. Holdfast's
// other keys need no repair: counters of tokens have no TTL, a queue and the description of a client get
// theirs again at the next use, and a dead waiter is skipped. Bare keys look like other data: of these, Leaks
// yields the keys that a client of Holdfast waits for.
//
// It reads the key space of each node in small steps (SCAN, so it needs the permission +scan), and changes
// nothing. It takes long on a server that is full of other data. progress, if not nil, is called after each
// step with the approximate number of scanned keys and of all keys. Nodes that cannot be read are reported
// last, in an error that matches driver.ErrUnavailable. Leaks keeps its results in memory.
func (d *Driver) Leaks(ctx context.Context, progress func(looked, all int64)) iter.Seq2[Leak, error] {
	return func(yield func(Leak, error) bool) {
		s := &leakScan{d: d, progress: progress, found: make(map[Leak]bool)}
		s.yield = func(l Leak) bool { return yield(l, nil) }
		nodes := d.set.members()
		u := &driver.UnavailableError{Need: len(nodes)}
		sizes := make([]int64, len(nodes))
		for i, n := range nodes {
			sizes[i] = n.countKeys(ctx)
			s.all += sizes[i]
		}
		for i, n := range nodes {
			before := s.looked
			s.unread = nil
			err := s.scanNodeLeaks(ctx, n)
			if errors.Is(err, errStopped) {
				return
			}
			if err = cmp.Or(err, errors.Join(s.unread...)); err != nil {
				u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: err})
			}
			s.looked = before + sizes[i]
		}
		if len(u.Nodes) > 0 {
			yield(Leak{}, fmt.Errorf("redis: leaks: %w", u))
		}
	}
}

// leakScan is one call of Leaks.
type leakScan struct {
	d           *Driver
	progress    func(looked, all int64)
	yield       func(Leak) bool
	looked, all int64
	found       map[Leak]bool // SCAN may return a key twice
	unread      []error       // errors of the present node's keys that could not be read
}

// countKeys returns the number of keys of a node; 0 if it is unknown.
func (n *node) countKeys(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, pace.ScanTime())
	defer cancel()
	replies, err := n.runCommands(ctx, []string{"INFO", "keyspace"})
	if err != nil {
		return 0
	}
	text, _ := replies[0].(string)
	_, text, _ = strings.Cut(server.ParseInfo(text)["db"+strconv.Itoa(n.d.opts.DB)], "keys=")
	text, _, _ = strings.Cut(text, ",")
	keys, _ := strconv.ParseInt(text, 10, 64)
	return keys
}

// scanNodeLeaks scans one node.
func (s *leakScan) scanNodeLeaks(ctx context.Context, n *node) error {
	bare := s.d.opts.BareKeys
	pattern := format.EscapeGlob(s.d.opts.Prefix) + "*"
	if bare {
		pattern = wire.Queue + "*"
	}
	for cursor := ""; cursor != "0"; {
		next, keys, err := n.scanKeys(ctx, cmp.Or(cursor, "0"), pattern)
		if err != nil {
			return err
		}
		cursor = next
		for i, key := range keys {
			if bare {
				keys[i] = wire.LockOf(key)
			}
		}
		for batch := range slices.Chunk(keys, leakBatch) {
			if err := s.scanLeakKeys(ctx, n, batch); err != nil {
				return err
			}
		}
		s.looked = min(s.looked+scanCount, s.all)
		if s.progress != nil {
			s.progress(s.looked, s.all)
		}
	}
	return nil
}

// scanLeakKeys yields the leaks among some keys.
func (s *leakScan) scanLeakKeys(ctx context.Context, n *node, keys []string) error {
	step, cancel := context.WithTimeout(ctx, pace.ScanTime())
	defer cancel()
	cmds := make([][]string, len(keys))
	for i, key := range keys {
		cmds[i] = []string{"PTTL", key}
	}
	replies, err := n.runCommands(step, cmds...)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if err, refused := replies[i].(resp.Error); refused {
			if err := s.skipUnreadableKey(key, err); err != nil {
				return err
			}
		}
		if replies[i] != int64(-1) {
			continue
		}
		l, err := n.readLeak(ctx, key)
		switch {
		case err != nil:
			if err := s.skipUnreadableKey(key, err); err != nil {
				return err
			}
			continue
		case l.Text == "" || s.found[l]:
			continue
		}
		s.found[l] = true
		if !s.yield(l) {
			return errStopped
		}
	}
	return nil
}

// skipUnreadableKey records that the server rejected the read of key, and lets the scan continue. It returns err if the
// scan has to end.
func (s *leakScan) skipUnreadableKey(key string, err error) error {
	if _, refused := errors.AsType[resp.Error](err); !refused || len(s.unread) == unreadMax {
		return err
	}
	s.unread = append(s.unread, fmt.Errorf("%s: %w", key, err))
	return nil
}

// readLeak describes the lock on key, which had no TTL. Text is empty if it is not a leak.
func (n *node) readLeak(ctx context.Context, key string) (l Leak, err error) {
	o := &n.d.opts
	name, ok := o.nameOf(key)
	if !ok {
		return Leak{}, nil
	}
	v := n.fetchViews(ctx, []engine.Lock{o.lockKeys(name)})[0]
	if v.Err != nil || v.Owner == "" || v.Left >= 0 {
		return Leak{}, v.Err
	}
	defer func() {
		if v.Defect != nil && l.Text != "" {
			l.Text += "; its waiters are not known: " + v.Defect.Error()
		}
	}()
	l = Leak{Node: n.addr, Key: key, Owner: v.Owner}
	kind, other := format.OtherType(v.Owner)
	switch {
	case o.format().OtherData(v.Owner): // any hash
		return Leak{}, nil
	case quorum.ClientOf(v.Owner) != "":
		l.Text = "a lock of Holdfast whose TTL was taken away (PERSIST?); the next renewal gives it one, or, if its holder has died, force-release removes it"
	case other:
		l.Text = "a key of type " + kind + " without a TTL, a lock of another library; remove it with the program that made it"
	case !o.format().OwnCounters():
		l.Text = "a lock of Redisson without a TTL; force-release with token 0 removes it"
	case v.Owner == wire.Empty:
		l.Owner, l.Fixable = "", true
		l.Text = "a lock of another library without a TTL, with an empty value; delete it if its holder has died"
	case format.IsDamaged(v.Owner):
		l.Fixable = true
		l.Text = "a lock of Holdfast whose number is no token, as if another program had changed it; delete it if its holder has died"
	default:
		replies, err := n.runCommands(ctx, []string{"GET", key}) // a view has "host 42" without the number, as if that were a token
		if err != nil {
			return Leak{}, err
		}
		if l.Owner, l.Fixable = replies[0].(string); !l.Fixable { // the key is gone
			return Leak{}, nil
		}
		l.Text = "a lock of another library without a TTL; delete it if its holder has died"
	}
	return l, nil
}

// DeleteLeak deletes the key of a leak, and reports whether it did. It does not delete a key that has another
// value or a TTL by now; check and deletion are one step on the node. Delete only locks whose holders have
// died. It blocks for one answer of the node. Errors: driver.ErrInvalid with ReadOnly or for a leak that is
// not Fixable, driver.ErrUnavailable.
func (d *Driver) DeleteLeak(ctx context.Context, l Leak) (bool, error) {
	nodes := d.set.members()
	i := slices.IndexFunc(nodes, func(n *node) bool { return n.addr == l.Node })
	switch {
	case d.opts.ReadOnly:
		return false, errReadOnly
	case i < 0 || !l.Fixable:
		return false, fmt.Errorf("%w: %s on %s is not a leak that can be deleted", driver.ErrInvalid, l.Key, l.Node)
	}
	ctx, cancel := context.WithTimeout(ctx, pace.AskTime())
	defer cancel()
	deleted, err := nodes[i].deleteLeak(ctx, l)
	if err != nil {
		return false, fmt.Errorf("redis: delete a leak: %w", &driver.UnavailableError{Need: 1, Nodes: []driver.NodeError{{Node: l.Node, Err: err}}})
	}
	return deleted, nil
}

func (n *node) deleteLeak(ctx context.Context, l Leak) (bool, error) {
	replies, err := n.runCommands(ctx, []string{"SCRIPT", "LOAD", leakLua})
	if err != nil {
		return false, err
	}
	sha, ok := replies[0].(string)
	if !ok {
		return false, fmt.Errorf("SCRIPT LOAD: %v", replies[0])
	}
	reply, err := n.evalScript(ctx, []string{"EVALSHA", sha, "1", l.Key, l.Owner})
	return reply == int64(1), err
}
