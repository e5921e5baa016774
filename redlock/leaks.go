package redlock

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// LeakKind is what was left on a node.
type LeakKind string

// The kinds of leaks.
const (
	LeakLock      LeakKind = "lock"      // a lock without a TTL, of another library or of one whose TTL was taken away
	LeakCompanion LeakKind = "companion" // a counter, a queue or the card of a client without a TTL
	LeakWaiter    LeakKind = "waiter"    // a place in a queue whose client listens no more
	LeakUnknown   LeakKind = "unknown"   // a key without a TTL that no client of this version has made
)

// Leak is something on a node that does not go away by itself, or waits for nobody.
type Leak struct {
	Node    string   `json:"node"`
	Kind    LeakKind `json:"kind"`
	Key     string   `json:"key"`             // as the node has it
	Owner   string   `json:"owner,omitempty"` // what a lock's key holds, or who waits
	Text    string   `json:"text"`            // what it is, and what Plug does to it
	Fixable bool     `json:"fixable"`         // by Plug
}

const (
	leakBatch = 200             // keys asked for together, so that others have their turn
	deafFor   = 3 * time.Second // after which a client has connected again
	cardKeep  = int64(greetKeep)
)

//go:embed plug.lua
var plugLua string

// Leaks yields what was left on the nodes: locks and other keys without a TTL, and places
// in queues of clients that have died. It reads the key space of each node in small steps
// (SCAN, so it needs the right +scan), changes nothing, and takes long on a server that is
// full of other data. progress, if not nil, is called after each step with about how many
// keys were looked at, and how many there are.
//
// What is about a node that cannot be read comes last, as an error that matches
// driver.ErrUnavailable; the leaks of the others come before it. It keeps in memory which
// leaks it has found.
func (d *Driver) Leaks(ctx context.Context, progress func(looked, all int64)) iter.Seq2[Leak, error] {
	return func(yield func(Leak, error) bool) {
		s := &sweep{d: d, progress: progress, found: make(map[Leak]bool), doubted: make(map[string]map[string]bool)}
		s.yield = func(l Leak) bool { return yield(l, nil) }
		nodes := d.members()
		u := &driver.UnavailableError{Need: len(nodes)}
		sizes := make([]int64, len(nodes))
		for i, n := range nodes {
			sizes[i] = n.size(ctx)
			s.all += sizes[i] * int64(len(s.patterns()))
		}
		for i, n := range nodes {
			before := s.looked
			err := s.node(ctx, n)
			if errors.Is(err, errStopped) {
				return
			}
			if err != nil {
				u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: err})
			}
			s.looked = before + sizes[i]*int64(len(s.patterns()))
		}
		if len(u.Nodes) > 0 {
			yield(Leak{}, fmt.Errorf("redlock: leaks: %w", u))
		}
	}
}

// sweep is one look for leaks.
type sweep struct {
	d           *Driver
	progress    func(looked, all int64)
	yield       func(Leak) bool
	looked, all int64
	found       map[Leak]bool              // SCAN may name a key twice
	doubted     map[string]map[string]bool // by queue: the places that nobody listened for
}

// patterns are those of keys that may be leaks. Bare keys look like other data, but their
// counters do not.
func (s *sweep) patterns() []string {
	o := &s.d.opts
	if o.BareKeys {
		return []string{wire.Companion + "*"}
	}
	return []string{glob(o.Prefix) + "*", wire.Companion + "*"}
}

// size is how many keys a node has; 0 if it does not say.
func (n *node) size(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	replies, err := n.do(ctx, []string{"INFO", "keyspace"})
	if err != nil {
		return 0
	}
	text, _ := replies[0].(string)
	_, text, _ = strings.Cut(parseInfo(text)["db"+strconv.Itoa(n.d.opts.DB)], "keys=")
	text, _, _ = strings.Cut(text, ",")
	keys, _ := strconv.ParseInt(text, 10, 64)
	return keys
}

// node looks at one node.
func (s *sweep) node(ctx context.Context, n *node) error {
	clear(s.doubted)
	for _, pattern := range s.patterns() {
		for cursor := ""; cursor != "0"; {
			next, keys, err := n.scan(ctx, cmp.Or(cursor, "0"), pattern)
			if err != nil {
				return err
			}
			cursor = next
			for batch := range slices.Chunk(keys, leakBatch) {
				if err := s.keys(ctx, n, batch); err != nil {
					return err
				}
			}
			s.looked = min(s.looked+scanCount, s.all)
			if s.progress != nil {
				s.progress(s.looked, s.all)
			}
		}
	}
	return s.deaf(ctx, n)
}

// tell yields a leak once.
func (s *sweep) tell(l Leak) error {
	if s.found[l] {
		return nil
	}
	s.found[l] = true
	if !s.yield(l) {
		return errStopped
	}
	return nil
}

// ask sends commands to n, in the time of one step.
func (s *sweep) ask(ctx context.Context, n *node, cmds ...[]string) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	return n.do(ctx, cmds...)
}

// keys looks at some keys.
func (s *sweep) keys(ctx context.Context, n *node, keys []string) error {
	if s.d.opts.BareKeys {
		for _, key := range slices.Clone(keys) {
			if strings.HasPrefix(key, wire.Fence) {
				keys = append(keys, wire.LockOf(key))
			}
		}
	}
	cmds := make([][]string, len(keys))
	for i, key := range keys {
		cmds[i] = []string{"PTTL", key}
	}
	replies, err := s.ask(ctx, n, cmds...)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if replies[i] == int64(-1) {
			err = s.endless(ctx, n, key)
		}
		if err == nil && strings.HasPrefix(key, wire.Queue) {
			err = s.queue(ctx, n, key, func(owner string) error { return s.doubt(key, owner) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endless tells what a key without a TTL is.
func (s *sweep) endless(ctx context.Context, n *node, key string) error {
	l := Leak{Node: n.addr, Kind: LeakCompanion, Key: key, Fixable: true}
	switch name, companion := strings.CutPrefix(key, wire.Companion); {
	case !companion:
		return s.lock(ctx, n, l)
	case name == "set" || strings.HasPrefix(name, "set:") || strings.HasPrefix(name, "set{"): // meant to stay
		return nil
	case strings.HasPrefix(key, wire.Fence):
		l.Text = "a counter of tokens without a TTL; it gets that of one that nobody uses"
	case strings.HasPrefix(key, wire.Queue):
		l.Text = "a queue without a TTL; it gets one, which each waiter extends"
	case strings.HasPrefix(key, wire.Client):
		l.Text = "the card of a client without a TTL; it gets one, which the client extends"
	default:
		l.Kind, l.Fixable, l.Text = LeakUnknown, false, "a key of another version of Holdfast, or of another program; look at it, and delete it by hand"
	}
	return s.tell(l)
}

// lock tells of a lock without a TTL, if it is one yet.
func (s *sweep) lock(ctx context.Context, n *node, l Leak) error {
	name, ok := s.d.opts.name(l.Key)
	if !ok {
		return nil
	}
	v := n.views(ctx, []engine.Lock{s.d.opts.keys(name)})[0]
	if v.Err != nil {
		return v.Err
	}
	if v.Owner == "" || v.Left >= 0 {
		return nil
	}
	l.Kind, l.Owner = LeakLock, v.Owner
	kind, other := otherType(v.Owner)
	if other && s.d.opts.Format == FormatRedisson {
		return nil // any hash
	}
	switch {
	case quorum.ClientOf(v.Owner) != "":
		l.Text = "a lock of Holdfast whose TTL was taken away (PERSIST?); it gets one of " + s.d.opts.MaxTTL.String() + ", which a holder that lives extends"
	case other:
		l.Fixable = false
		l.Text = "a key of type " + kind + " without a TTL, a lock of another library; remove it with the program that made it"
	case s.d.opts.Format == FormatRedisson:
		l.Fixable = false
		l.Text = "a lock of Redisson without a TTL; force-release with token 0 removes it"
	case v.Owner == wire.Empty:
		l.Owner, l.Text = "", "a lock of another library without a TTL, with an empty value; it is deleted if it is still the same"
	default:
		l.Text = "a lock of another library without a TTL, which stays if its holder has died; it is deleted if it is still the same"
	}
	return s.tell(l)
}

// queue calls silent for each place that nobody listens for.
func (s *sweep) queue(ctx context.Context, n *node, key string, silent func(owner string) error) error {
	for from := 0; ; from += leakBatch {
		replies, err := s.ask(ctx, n, []string{"ZRANGE", key, strconv.Itoa(from), strconv.Itoa(from + leakBatch - 1)})
		if err != nil {
			return err
		}
		entries, _ := replies[0].([]any)
		owners := make([]string, 0, len(entries))
		for _, e := range entries {
			if owner, ok := e.(string); ok {
				owners = append(owners, owner)
			}
		}
		if owners, err = s.silent(ctx, n, owners); err != nil {
			return err
		}
		for _, owner := range owners {
			if err := silent(owner); err != nil {
				return err
			}
		}
		if len(entries) < leakBatch {
			return nil
		}
	}
}

// doubt notes a place that nobody listens for.
func (s *sweep) doubt(key, owner string) error {
	if s.doubted[key] == nil {
		s.doubted[key] = make(map[string]bool)
	}
	s.doubted[key][owner] = true
	return nil
}

// silent are the owners for whom nobody listens on n: none where that cannot be asked.
func (s *sweep) silent(ctx context.Context, n *node, owners []string) (silent []string, err error) {
	if len(owners) == 0 {
		return nil, nil
	}
	cmd := []string{"PUBSUB", "NUMSUB"}
	for _, owner := range owners {
		cmd = append(cmd, wire.Wake+cmp.Or(quorum.ClientOf(owner), owner))
	}
	replies, err := s.ask(ctx, n, cmd)
	if err != nil {
		return nil, err
	}
	counts, _ := replies[0].([]any)
	for i, owner := range owners {
		if 2*i+1 < len(counts) && counts[2*i+1] == int64(0) {
			silent = append(silent, owner)
		}
	}
	return silent, nil
}

// deaf tells of the places that nobody listens for some seconds later either.
func (s *sweep) deaf(ctx context.Context, n *node) error {
	if len(s.doubted) == 0 {
		return nil
	}
	select {
	case <-time.After(deafFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	for key, doubted := range s.doubted {
		err := s.queue(ctx, n, key, func(owner string) error {
			if !doubted[owner] {
				return nil
			}
			return s.tell(Leak{
				Node: n.addr, Kind: LeakWaiter, Key: key, Owner: owner, Fixable: true, Text: "a place in a queue whose client listens no more; it is taken out",
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Plug mends a leak, in the way that its Text says, and reports whether it did: what has
// become something else meanwhile, such as a lock with a TTL or a waiter that listens, it
// leaves alone, in one step on the node. It never touches a lock with a TTL. It blocks for
// one answer of the node. Errors: driver.ErrInvalid with ReadOnly or for a leak that is not
// Fixable, driver.ErrUnavailable.
func (d *Driver) Plug(ctx context.Context, l Leak) (bool, error) {
	nodes := d.members()
	i := slices.IndexFunc(nodes, func(n *node) bool { return n.addr == l.Node })
	switch {
	case d.opts.ReadOnly:
		return false, errReadOnly
	case i < 0 || !l.Fixable:
		return false, fmt.Errorf("%w: %s on %s is none that can be mended here", driver.ErrInvalid, l.Key, l.Node)
	}
	n, kind, keep := nodes[i], string(l.Kind), int64(quorum.QueueKeep*time.Millisecond)
	switch {
	case l.Kind == LeakLock && quorum.ClientOf(l.Owner) != "":
		kind, keep = string(LeakCompanion), int64(d.opts.MaxTTL)
	case strings.HasPrefix(l.Key, wire.Fence):
		keep = int64(max(d.opts.CounterLife, 2*d.opts.MaxTTL))
	case strings.HasPrefix(l.Key, wire.Client):
		keep = cardKeep
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	done, err := n.plug(ctx, l.Key, kind, l.Owner, millis(keep))
	if err != nil {
		return false, fmt.Errorf("redlock: plug: %w", &driver.UnavailableError{Need: 1, Nodes: []driver.NodeError{{Node: n.addr, Err: err}}})
	}
	return done, nil
}

// plug runs the script, which is few enough times used not to be among those of the wire.
func (n *node) plug(ctx context.Context, key, kind, owner, keep string) (bool, error) {
	replies, err := n.do(ctx, []string{"SCRIPT", "LOAD", plugLua})
	if err != nil {
		return false, err
	}
	sha, ok := replies[0].(string)
	if !ok {
		return false, fmt.Errorf("SCRIPT LOAD: %v", replies[0])
	}
	reply, err := n.eval(ctx, []string{"EVALSHA", sha, "1", key, kind, owner, keep})
	if err != nil {
		return false, err
	}
	return reply == int64(1), nil
}
