package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	defaultTTL = 10 * time.Second
	leastTTL   = 10 * time.Millisecond
	mostTTL    = 365 * 24 * time.Hour // far from where sums of times overflow
	longestKey = 512                  // bytes
	closeTime  = 2 * time.Second
)

// Token is a fencing token: a number that grows with each holder of a key, so
// that a storage which remembers the highest one can refuse a holder who has
// lost his lease without noticing. It fits a BIGINT.
// (M. Kleppmann, "How to do distributed locking", 2016.)
type Token int64

// Holder says who holds a lock, for people who look at it.
type Holder = driver.Holder

// Options configure a Client. The zero value works.
type Options struct {
	// Holder is shown to those who find the lock held. Default: this machine's
	// name, this process and the name of its program.
	Holder Holder
	// Hooks are called when something happens to a lease.
	Hooks Hooks
	// Logger gets lost leases, failed releases and changes of node state.
	// nil is silent.
	Logger *slog.Logger
}

// AcquireOptions say how to take one lock. The zero value works.
type AcquireOptions struct {
	// TTL is how long the lock stands when its holder is gone, and so how soon
	// others can go on after a crash. Default 10 s; from 10 ms to a year. A
	// driver may have narrower bounds.
	TTL time.Duration
	// Wait is how long Acquire waits for a lock that is held, or for a service that
	// is down, before it returns ErrHeld or ErrUnavailable.
	// 0: until its context ends.
	Wait time.Duration
	// NoRenew leaves out the watchdog: the lease ends TTL after it was taken.
	// Otherwise the watchdog renews it every TTL/3 until it is released, also
	// when TTL is set (which Redisson does not do); and soon after it was handed
	// over by another client, as it then begins with a second at most.
	NoRenew bool
	// MaxHold bounds how long the lease lasts, against a holder that hangs: it is
	// lost then at the latest, whatever was renewed or extended. 0: no bound.
	MaxHold time.Duration
	// MinHold is how long the lock is kept at least, even when it is released
	// earlier: for jobs that several machines start at once, by clocks that
	// differ. Release does not wait for it; a crash ends it.
	MinHold time.Duration
	// Reentrant allows nesting: with a context that comes from a live lease of
	// the same key, Acquire returns another hold of that lease. Without it, that
	// is ErrReentrant. A nested hold shares the lease, so that TTL, NoRenew, MaxHold
	// and MinHold are left out or the same as the lease's; else it is ErrInvalid.
	Reentrant bool
}

// Client takes leases through one driver. It is safe for concurrent use.
type Client struct {
	drv    driver.Driver
	limits driver.Limits
	holder Holder
	events herald

	alive context.Context // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup // the watchdog and what it started
	nudge chan struct{}  // wakes the watchdog

	mu     sync.Mutex // guards what follows, and every slot, term and Lease
	slots  map[string]*slot
	terms  schedule
	sleeps time.Time     // until then the watchdog sleeps; zero: until nudged
	looked time.Time     // when the watchdog last looked at every lease
	ending bool          // no new leases and waits
	vacant chan struct{} // closed once it is ending and no slot is left

	closing bool
	closed  chan struct{} // closed when Close is done
}

// New returns a client over drv, which it closes with itself. opts may be nil.
// It does not block.
func New(drv driver.Driver, opts *Options) (*Client, error) {
	if v := reflect.ValueOf(drv); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, wrap("new", "", invalid("no driver; open one with redlock.Open or memory.New, and look at the error first"))
	}
	if opts == nil {
		opts = &Options{}
	}
	c := &Client{
		drv: drv, limits: drv.Limits(), holder: opts.Holder, events: herald{hooks: opts.Hooks, log: opts.Logger},
		nudge: make(chan struct{}, 1), slots: make(map[string]*slot), vacant: make(chan struct{}), closed: make(chan struct{}),
	}
	if c.holder == (Holder{}) {
		c.holder = thisProcess()
	}
	c.alive, c.stop = context.WithCancel(context.Background())
	if n, ok := drv.(driver.Notifier); ok {
		n.Notify(c.nodeChanged)
	}
	c.tasks.Go(c.watch)
	return c, nil
}

func thisProcess() Holder {
	host, _ := os.Hostname()
	return Holder{Host: host, PID: os.Getpid(), Program: filepath.Base(os.Args[0])}
}

func (c *Client) nodeChanged(e NodeEvent) {
	level := slog.LevelWarn
	if e.State == driver.NodeUp {
		level = slog.LevelInfo
	}
	c.events.write(level, "node changed", "node", e.Node, "state", string(e.State), "cause", e.Err)
	c.events.node(e)
}

// Acquire takes the lock on key. It blocks until the lock is granted, ctx ends,
// opts.Wait is over, or the service refuses for good; opts may be nil. ctx bounds
// the wait, not the lease, which carries ctx's values but not its end.
//
// Errors: ErrHeld or ErrUnavailable, whichever stood in the way last, when Wait is
// over, ErrReentrant, ErrInvalid, ErrClosed. An outage is waited out like a holder;
// what time does not mend, such as a wrong password, is ErrUnavailable at once. When
// ctx ends, the error matches both ctx.Err() and what stood in the way last, if that
// is known. After an error nothing stays behind.
func (c *Client) Acquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	l, err := c.acquire(ctx, key, opts, false)
	return l, wrap("acquire", key, err)
}

// TryAcquire makes one attempt: it is Acquire without the wait. When this client
// holds the key it answers at once, and when another caller of it asks for the key
// TryAcquire waits for his first answer and returns what stands in his way.
func (c *Client) TryAcquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	l, err := c.acquire(ctx, key, opts, true)
	return l, wrap("acquire", key, err)
}

// Do acquires key, calls fn and releases, also when fn panics. fn's context ends
// when ctx ends and, with cause ErrLost, when the lease is lost; fn should pass
// lease.Token to what it writes to.
//
// Do returns the error of Acquire, or fn's error, or one that matches ErrLost if
// the lease ended before fn returned, or both of these. If it was Close that ended
// the lease, the error matches ErrClosed as well. A release that fails is told to
// Hooks and does not spoil fn's success: the lock lapses by itself.
func (c *Client) Do(ctx context.Context, key string, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) (err error) {
	lease, err := c.Acquire(ctx, key, opts)
	if err != nil {
		return err
	}
	fctx, cancel := context.WithCancelCause(lease.Context())
	unlink := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		unlink()
		cancel(nil)
		end := lease.ended()
		if failed := lease.release(context.WithoutCancel(ctx)); end == nil {
			end = failed
		}
		switch end = wrap("do", key, end); {
		case !errors.Is(end, ErrLost):
		case err == nil:
			err = end
		default:
			err = fmt.Errorf("%w; %w", err, end)
		}
	}()
	return fn(fctx, lease)
}

// Adopt takes over a lease that another client has detached, by its Key, ID and
// Token, and returns a lease with an ID and a Token of its own, later than the old one.
// Of several that adopt one lease, one succeeds. Whoever still works under it has lost
// it, but hears so at its next renewal or Deadline and no sooner: that is why a lease is
// detached first. The watchdog treats it like any other.
//
// Adopt blocks until the lease is its own or known to be over, at most for opts.TTL.
// Errors: ErrLost when it was released, has lapsed or is another's; ErrUnavailable when
// too few nodes have answered: then it is adopted by nobody, and lapses; ErrUnsupported,
// ErrInvalid, ErrHeld when this client itself holds or awaits the key.
func (c *Client) Adopt(ctx context.Context, key, id string, token Token, opts *AcquireOptions) (*Lease, error) {
	l, err := c.adopt(ctx, key, id, token, opts)
	return l, wrap("adopt", key, err)
}

// Status is what is known about one lock.
type Status struct {
	Key       string
	Held      bool
	ID        string // the holder's Lease.ID, up to a "+"
	Holder    Holder
	Since     time.Time // when the holder asked for it, by its own clock; zero if unknown
	Token     Token     // the first token of the holder's grant
	Remaining time.Duration
	Waiters   int
	Holds     int // how many holds this client has of it
	Nodes     []NodeStatus
}

// NodeStatus is one node's view of a lock.
type NodeStatus = driver.NodeStatus

// Inspect reports who holds key, without changing anything. It blocks for one
// answer of the service. Errors: ErrUnavailable, ErrUnsupported, ErrInvalid.
func (c *Client) Inspect(ctx context.Context, key string) (Status, error) {
	if err := checkKey(key); err != nil {
		return Status{}, wrap("inspect", key, err)
	}
	in, ok := c.drv.(driver.Inspector)
	if !ok {
		return Status{}, wrap("inspect", key, ErrUnsupported)
	}
	st, err := in.Inspect(ctx, key)
	return c.status(st), wrap("inspect", key, err)
}

// List yields the locks that are held or waited for and whose key begins with
// prefix. An error ends the sequence.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		l, ok := c.drv.(driver.Lister)
		if !ok {
			yield(Status{}, wrap("list", "", ErrUnsupported))
			return
		}
		err := l.List(ctx, prefix, func(st driver.Status) bool { return yield(c.status(st), nil) })
		if err != nil {
			yield(Status{}, wrap("list", "", err))
		}
	}
}

// ForceRelease takes the lock away from the holder that token belongs to, and
// from nobody else: a newer holder is never hit. The old holder cannot renew any
// more, and storages that check tokens refuse it once the next holder has
// written. Token 0 stands for a holder without one, which uses another library.
//
// Errors: ErrLost when token does not belong to the present holder,
// ErrUnavailable, ErrUnsupported.
func (c *Client) ForceRelease(ctx context.Context, key string, token Token) error {
	if err := checkKey(key); err != nil {
		return wrap("force release", key, err)
	}
	f, ok := c.drv.(driver.Forcer)
	if !ok {
		return wrap("force release", key, ErrUnsupported)
	}
	done, err := f.Force(ctx, key, int64(token))
	if err == nil && !done {
		err = strangerError(token)
	}
	return wrap("force release", key, err)
}

// strangerError is a token that is not the present holder's.
type strangerError Token

func (t strangerError) Error() string {
	return fmt.Sprintf("token %d does not belong to the present holder; nothing was released", Token(t))
}

func (strangerError) Is(target error) bool { return target == ErrLost }

// Shutdown lets the holders finish: it refuses new leases and new waits with
// ErrClosed, ends the waits that have begun, goes on renewing what is held, and
// blocks until all of it is released or lost, or ctx ends. Then it closes the client
// as Close does, which releases what is still held. A nested hold of a lease that
// lives is no new lease.
//
// Shutdown returns nil when nothing was held any more, also when Close came
// meanwhile and released it; otherwise an error that matches ctx.Err(). It may be
// called beside Close and again.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.end()
	c.mu.Unlock()
	var err error
	select {
	case <-c.vacant:
	case <-ctx.Done():
		c.mu.Lock()
		held := len(c.held())
		c.mu.Unlock()
		if held > 0 {
			err = fmt.Errorf("%w: locks still held, and released: %d", ctx.Err(), held)
		}
	}
	return wrap("shutdown", "", cmp.Or(err, c.close()))
}

// Close releases what the client holds, a lock with MinHold after that time, ends
// every wait with ErrClosed and closes the driver. The context of a lease that it
// releases ends with a cause that matches ErrLost and ErrClosed, as somebody else
// may have the lock from then on; Shutdown lets the holders finish before.
//
// Close blocks until the service has answered what was asked and released, and
// the hooks have been called, for four seconds at most. A second Close waits for
// the first, and returns nil.
func (c *Client) Close() error { return wrap("close", "", c.close()) }

func (c *Client) close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		<-c.closed
		return nil
	}
	c.closing = true
	c.end()
	held := c.held()
	c.mu.Unlock()
	defer close(c.closed)

	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	c.releaseAll(ctx, held)
	select {
	case <-c.vacant: // whoever was asking, or releasing, has done so
	case <-ctx.Done():
	}
	c.stop()
	err := c.drv.Close()
	c.tasks.Wait()
	<-c.vacant // soon: the driver has ended what was under way
	told, cancel := context.WithTimeout(context.Background(), eventsTime)
	defer cancel()
	c.events.drain(told)
	return err
}

// end refuses what is new, and sends away whoever waits or asks. The caller holds mu.
func (c *Client) end() {
	if c.ending {
		return
	}
	c.ending = true
	for _, s := range c.slots {
		s.dismiss()
		if s.asking != nil && s.asking.cancel != nil {
			s.asking.cancel(ErrClosed)
		}
	}
	if len(c.slots) == 0 {
		close(c.vacant)
	}
}

// held is the grants that the client holds. The caller holds mu.
func (c *Client) held() []*term {
	var held []*term
	for _, s := range c.slots {
		if s.term != nil {
			held = append(held, s.term)
		}
	}
	return held
}

// releaseAll ends and releases terms, some hundred at a time.
func (c *Client) releaseAll(ctx context.Context, held []*term) {
	var all sync.WaitGroup
	gate := make(chan struct{}, 256)
	for _, t := range held {
		gate <- struct{}{}
		all.Go(func() {
			defer func() { <-gate }()
			c.mu.Lock()
			keep, end := t.keep(time.Now()), t.end(errTaken)
			c.mu.Unlock()
			end.tell(c)
			if end.ours {
				c.finish(ctx, t, keep, end)
			}
		})
	}
	all.Wait()
}

func (c *Client) status(st driver.Status) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Status{
		Key: st.Key, Held: st.Held, ID: st.Owner, Holder: st.Holder, Since: st.Since, Token: Token(st.Token),
		Remaining: st.Remaining, Waiters: st.Waiters, Nodes: st.Nodes,
	}
	if s := c.slots[st.Key]; s != nil {
		out.Waiters += s.queue.Len()
		if s.term != nil && s.term.grant.Owner == st.Owner {
			out.Holds = len(s.term.now.holds)
		}
	}
	return out
}

// check fills in defaults and refuses what cannot work.
func (c *Client) check(key string, opts *AcquireOptions) (AcquireOptions, error) {
	var o AcquireOptions
	if opts != nil {
		o = *opts
	}
	if err := checkKey(key); err != nil {
		return o, err
	}
	if o.TTL == 0 {
		o.TTL = defaultTTL
		if c.limits.MaxTTL != 0 {
			o.TTL = min(o.TTL, c.limits.MaxTTL)
		}
	}
	if o.Wait < 0 || o.MaxHold < 0 || o.MinHold < 0 {
		return o, invalid("Wait %v, MaxHold %v, MinHold %v: none may be negative", o.Wait, o.MaxHold, o.MinHold)
	}
	return o, c.checkTTL(max(o.TTL, o.MinHold), o.TTL)
}

func (c *Client) checkTTL(most, least time.Duration) error {
	switch floor := max(leastTTL, c.limits.MinTTL); {
	case least < floor:
		return invalid("TTL %v is too short; give at least %v", least, floor)
	case most > mostTTL:
		return invalid("TTL or MinHold %v is too long; give at most %v, and let the watchdog renew", most, mostTTL)
	case c.limits.MaxTTL != 0 && most > c.limits.MaxTTL:
		return invalid("TTL or MinHold %v is too long; this driver takes up to %v (redlock: option MaxTTL, or ?maxttl= in the URL, for all clients alike)", most, c.limits.MaxTTL)
	}
	return nil
}

func checkKey(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case len(key) > longestKey:
		return invalid("the key has %d bytes; give at most %d", len(key), longestKey)
	case !utf8.ValidString(key):
		return invalid("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return invalid("the key has control characters")
	case strings.HasPrefix(key, "holdfast:"):
		return invalid("keys that begin with %q are kept for Holdfast itself", "holdfast:")
	}
	return nil
}
