//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
)

// orderVariable has the order for this process if it is a client.
const orderVariable = "CHAOS_CLIENT"

// order holds the instructions for a client process.
type order struct {
	Number    int      `json:"number"`
	Name      string   `json:"name"`   // unique among all processes of the run
	Peer      bool     `json:"peer"`   // it uses the other library
	Role      string   `json:"role"`   // its role instead of the tasks of a client; empty: the tasks
	Narrow    bool     `json:"narrow"` // it has one processor
	Nodes     []string `json:"nodes"`
	User      string   `json:"user,omitempty"` // user of the lock service
	Password  string   `json:"password,omitempty"`
	Passwords []string `json:"passwords,omitempty"` // password files, one per node
	// Detours maps addresses of nodes to proxies, for nodes that must be known by their own addresses.
	Detours  map[string]string `json:"detours,omitempty"`
	Stores   stores            `json:"stores"`
	History  string            `json:"history"`
	Start    int64             `json:"start"`
	Length   Duration          `json:"length"`
	Schedule Schedule          `json:"schedule"`
}

const (
	// tail is the end of a window without new requests for locks, so that no request reaches into the next
	// window.
	tail      = 300 * time.Millisecond
	storeTime = 2 * time.Second
)

// roles are the permanent tasks of special processes.
var roles = map[string]func(*holdfasts, context.Context){operatorRole: (*holdfasts).runOperator, candidateRole: (*holdfasts).leadRepeatedly}

// worker is one goroutine that acquires locks and works under them.
type worker struct {
	*order
	task   task
	rec    *recorder
	spans  []span
	stores *openStores
	tries  *atomic.Int64
	long   bool // it does the long jobs
	locks  service
}

// lockRequest describes a request for a lock. Other libraries ignore it.
type lockRequest struct {
	ttl       time.Duration
	least     time.Duration // minimal hold of the lock
	adoptable bool          // another process may adopt the lease
}

// heldLock is a lock as a worker sees it.
type heldLock struct {
	key     string         // name in the history; empty for the other library
	token   holdfast.Token // 0: the library has no tokens
	id      string
	until   int64
	lease   *holdfast.Lease // nil for the other library
	release func(context.Context) error
}

// service gives a client its locks.
type service interface {
	takeLock(ctx context.Context, key string, as lockRequest) (heldLock, error)
	executeOrder(ctx context.Context, order string) error
	close()
}

// runClient runs this process as a client. It ends at the end of its standard input.
func runClient(text string) error {
	o := new(order)
	if err := json.Unmarshal([]byte(text), o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := make(chan string, 100) // buffered: a running order must not hide the end of input
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); { // ends with the parent
			orders <- lines.Text()
		}
	}()
	rec := &recorder{dir: o.History, client: o.Name, files: make(map[int]*os.File)}
	spans := o.Schedule.planSpans(o.Start, time.Duration(o.Length))
	locks, err := o.open(ctx, rec, spans)
	if ctx.Err() != nil { // told to end before it began
		return nil
	}
	if err != nil {
		return err
	}
	defer locks.close()
	var workers sync.WaitGroup
	if role := roles[o.Role]; role != nil {
		workers.Go(func() { role(locks.(*holdfasts), ctx) })
	} else {
		s, err := o.Stores.open(!o.Peer)
		if err != nil {
			return err
		}
		defer s.close()
		var tries atomic.Int64
		for _, task := range tasks {
			for i := range task.workers(o) {
				w := &worker{order: o, task: task, rec: rec, spans: spans, stores: s, tries: &tries, locks: locks, long: i == 0}
				workers.Go(func() { w.run(ctx) })
			}
		}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		workers.Wait()
	}()
	for {
		select {
		case order := <-orders:
			if err := locks.executeOrder(ctx, order); err != nil && ctx.Err() == nil { // without an error it ends when its jobs are done
				return err
			}
		case <-over:
			return nil
		}
	}
}

func (o *order) open(ctx context.Context, rec *recorder, spans []span) (service, error) {
	if o.Peer {
		return o.Schedule.backend().openPeer(o, rec)
	}
	return openHoldfast(ctx, o, rec, spans)
}

func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		now := monotonicNow()
		s := spanAt(w.spans, now)
		switch {
		case s == nil && now > w.Start:
			return
		case s == nil:
			sleep(ctx, time.Duration(w.Start-now))
		case s.end-now < int64(s.quietTime()):
			if s.Class == after {
				return
			}
			sleep(ctx, time.Duration(s.end-now))
		default:
			w.task.takeTurn(ctx, w, s)
			sleep(ctx, rand.N(w.task.pause()))
		}
	}
}

// minHoldTime is the minimum hold of some locks.
const minHoldTime = 700 * time.Millisecond

// job is the work of a worker under one lock.
type job struct {
	key   string
	n     int // number of the lock
	as    lockRequest
	ops   int           // minimal number of operations
	hold  time.Duration // minimal duration
	think time.Duration // longest pause between a read and its write
	duty  holderDuty
}

func (w *worker) jobFor(s *span) job {
	j := job{ops: 1, think: 4 * time.Millisecond, as: lockRequest{ttl: time.Duration(w.Schedule.TTL)}}
	j.n = w.Schedule.Long + rand.N(w.Schedule.Keys-w.Schedule.Long)
	if w.long { // sometimes longer than a TTL: it needs renewals
		j.n, j.ops, j.think, j.hold = rand.N(w.Schedule.Long), 1+rand.N(10), 400*time.Millisecond, time.Duration(s.Hold)
	}
	j.key = s.key("h", j.n)
	if w.Peer {
		j.key = s.key("r", j.n)
		return j
	}
	locks := w.locks.(*holdfasts)
	switch j.duty = w.Schedule.backend().classes[s.Class].duty; j.duty {
	case stretching:
		j.as.ttl, j.think, j.hold = pickRandom(locks.allowedTTLs()), 100*time.Millisecond, rand.N(2500*time.Millisecond)
	case apart:
		j.key = apartKey(s, w.Schedule.Keys, locks.apart.side, j.n)
	case handing:
		j.as.adoptable = locks.adopts
	case passing:
		j.as.adoptable = locks.adopts
		if locks.limits.MinHold && rand.N(4) == 0 {
			j.as.least = minHoldTime
		}
	}
	return j
}

func pickRandom[T any](from []T) T { return from[rand.N(len(from))] }

// nextTry returns the name of the process's next attempt.
func (w *worker) nextTry() string { return w.Name + "/" + strconv.FormatInt(w.tries.Add(1), 10) }

// lockTask acquires a lock, works under it without checking that it still has it, as a careless holder does,
// and releases it. Other libraries have only this task.
type lockTask struct{}

func (lockTask) family() string       { return "h" }
func (lockTask) workers(o *order) int { return o.Schedule.Workers }
func (lockTask) pause() time.Duration { return 20 * time.Millisecond }
func (lockTask) title() string        { return "" } // the main table has it

func (lockTask) takeTurn(ctx context.Context, w *worker, s *span) {
	j, try := w.jobFor(s), w.nextTry()
	e := event{Kind: asked, Key: j.key, Try: try, TTL: int64(j.as.ttl), Least: int64(j.as.least)}
	ask := func(ctx context.Context) (heldLock, error) { return w.locks.takeLock(ctx, j.key, j.as) }
	if j.duty == apart {
		ask = func(ctx context.Context) (heldLock, error) { return w.locks.(*holdfasts).lockApart(ctx, s, j.n, j.as) }
	}
	if j.duty.handsOver() {
		if o := w.takeOffer(ctx, s); o != nil {
			j.key, j.n, j.as.least = o.Key, o.N, 0
			e.Key, e.From, e.Least = o.Key, o.Owner, 0
			ask = func(ctx context.Context) (heldLock, error) { return w.locks.(*holdfasts).adoptOffer(ctx, o, j.as) }
		}
	}
	patience := time.Duration(s.end - monotonicNow())
	if j.duty.handsOver() { // another process may have made an offer
		patience = min(patience, rand.N(time.Second))
	}
	if j.duty == handing { // nothing else ends the call
		e.Wait = int64(patience)
	}
	w.rec.record(e)
	wait, cancel := context.WithTimeout(ctx, patience)
	h, err := ask(wait)
	cancel()
	if err != nil {
		w.rec.record(event{Kind: failed, Key: j.key, Try: try, Err: err.Error()})
		sleep(ctx, 10*time.Millisecond)
		return
	}
	w.rec.record(event{Kind: got, Key: j.key, Try: try, Token: int64(h.token), ID: h.id, Until: h.until})
	end := monotonicNow() + int64(j.hold)
	for op := 1; (op <= j.ops || monotonicNow() < end) && monotonicNow() < s.end && (j.duty != handing || ctx.Err() == nil); op++ {
		w.readAndWrite(ctx, j.key, j.n, try, op, h, rand.N(j.think))
		if j.duty == stretching && rand.N(6) == 0 { // rarely: each call would hide the effect of a late one
			w.locks.(*holdfasts).changeTTL(ctx, h, j.as.ttl)
		}
	}
	w.endHold(ctx, s, j, try, h)
}

// readAndWrite reads, thinks and writes, in all storages at once, so that they can be compared.
func (w *worker) readAndWrite(ctx context.Context, key string, n int, try string, op int, h heldLock, think time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	var read []event
	stores := make(map[string]*store)
	for _, st := range w.stores.storesOf(n, h.token != 0) {
		e := event{Kind: reading, Key: key, Try: try, Store: st.name, Op: try + "." + strconv.Itoa(op)}
		w.rec.record(e)
		prev, err := st.get(ctx, key, h)
		switch {
		case err == nil:
			e.Kind, e.Prev = seen, prev
			read, stores[st.name] = append(read, e), st
		case isStale(err):
			e.Kind = barred
		default: // no answer
			continue
		}
		w.rec.record(e)
	}
	sleep(ctx, think)
	for _, e := range read {
		e.Kind = writing
		w.rec.record(e)
		switch err := stores[e.Store].set(ctx, key, h, e.Op); {
		case err == nil:
			e.Kind = acked
		case isStale(err):
			e.Kind = refused
		default:
			e.Kind, e.Err = unknown, err.Error()
		}
		w.rec.record(e)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}
