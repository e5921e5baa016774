//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// task is a kind of work that some workers of each client do in turns. Its histories are judged as histories of
// locks: each slot of a semaphore is one lock, and so is each of several names. A whole semaphore, or a
// read-write lock, is a lock with several simultaneous holders, and a writer counts for all of them.
type task interface {
	// title names the task in the report; empty: the report's main table shows it.
	title() string
	// family begins the names of its locks in a window; see span.key.
	family() string
	// workers returns the number of workers of this client.
	workers(*order) int
	// pause returns the longest pause of a worker between two turns.
	pause() time.Duration
	// takeTurn acquires the lock of the task, keeps it for a while and releases it.
	takeTurn(context.Context, *worker, *span)
}

// tasks are all tasks of the clients.
var tasks = []task{lockTask{}, semaphoreTask{}, multiLockTask{}, readWriteTask{}}

// taskOf returns the task of a lock, by its key; nil: the lock belongs to another library.
func taskOf(key string) task {
	_, name, _ := strings.Cut(key, "/")
	name = strings.TrimRight(strings.TrimRight(name, "#0123456789"), "0123456789")
	for _, t := range tasks {
		if t.family() == name {
			return t
		}
	}
	return nil
}

// shareOf returns this client's share of the workers.
func (o *order) shareOf(workers int) int {
	if o.Peer {
		return 0
	}
	n := workers / o.Schedule.Clients
	if o.Number < workers%o.Schedule.Clients {
		n++
	}
	return n
}

// holdTime returns the time for which a task keeps its lock. Sometimes it is longer than a TTL, so that it
// needs renewals.
func (w *worker) holdTime(s *span, usual time.Duration) time.Duration {
	d := rand.N(usual)
	if s.Class != after && rand.IntN(30) == 0 { // in the last window all others must get their turn
		d = time.Duration(w.Schedule.TTL) + rand.N(500*time.Millisecond)
	}
	return min(d, time.Duration(s.end-monotonicNow()))
}

// patienceIn bounds the wait of a call: to the end of the window at most.
func patienceIn(s *span) time.Duration {
	if s.Class == after {
		return time.Duration(s.end - monotonicNow())
	}
	return min(500*time.Millisecond+rand.N(3*time.Second), time.Duration(s.end-monotonicNow()))
}

// giveBack releases the locks of a worker, under these keys and attempts.
func (w *worker) giveBack(ctx context.Context, keys, tries []string, release func(context.Context) error) {
	for i, key := range keys {
		w.rec.record(event{Kind: leaving, Key: key, Try: tries[i]})
	}
	err := release(context.WithoutCancel(ctx))
	for i, key := range keys {
		w.rec.record(event{Kind: released, Key: key, Try: tries[i], Err: errorText(err)})
	}
}

// semaphoreTask has eight workers, some of them in one process, for a semaphore. Each slot guards its own values.
type semaphoreTask struct{}

const (
	slots       = 3
	slotWorkers = 8
)

func (semaphoreTask) title() string {
	return fmt.Sprintf("semaphore of %d slots, %d workers", slots, slotWorkers)
}
func (semaphoreTask) family() string       { return "hs" }
func (semaphoreTask) pause() time.Duration { return 300 * time.Millisecond }

// workers returns two for each of the first clients, so that the two share one line.
func (semaphoreTask) workers(o *order) int {
	if o.Peer {
		return 0
	}
	return min(2, max(0, slotWorkers-2*o.Number))
}

// slotKey returns the name of a slot in the history and on the service.
func slotKey(key string, slot int) string { return key + "#" + strconv.Itoa(slot) }

func (semaphoreTask) takeTurn(ctx context.Context, w *worker, s *span) {
	locks, key, try := w.locks.(*holdfasts), s.key("hs", 0), w.nextTry()
	opts := locks.requestOptions(lockRequest{ttl: time.Duration(w.Schedule.TTL)})
	opts.Wait = patienceIn(s)
	w.rec.record(event{Kind: asked, Key: key, Try: try, TTL: int64(opts.TTL), Slots: slots, Wait: int64(opts.Wait)})
	lease, err := locks.current.Load().Semaphore(key, slots).Acquire(ctx, opts)
	if err != nil {
		w.rec.record(event{Kind: failed, Key: key, Try: try, Err: err.Error()})
		return
	}
	h := locks.newHeld(lease, slotKey(key, lease.Slot()))
	w.rec.record(event{Kind: got, Key: h.key, Try: try, Token: int64(h.token), ID: h.id, Until: h.until})
	w.readAndWrite(ctx, h.key, 1, try, 1, h, w.holdTime(s, 100*time.Millisecond))
	w.giveBack(ctx, []string{h.key}, []string{try}, h.release)
}

// multiLockTask has sixteen workers, each of which acquires some of twelve locks in one call.
type multiLockTask struct{}

const (
	manyWorkers = 16
	manyNames   = 12
	maxMany     = 5 // most locks in one call
)

func (multiLockTask) title() string {
	return fmt.Sprintf("AcquireAll of 1 to %d of %d names, %d callers", maxMany, manyNames, manyWorkers)
}
func (multiLockTask) family() string       { return "ha" }
func (multiLockTask) pause() time.Duration { return 1200 * time.Millisecond }
func (multiLockTask) workers(o *order) int { return o.shareOf(manyWorkers) }

func (multiLockTask) takeTurn(ctx context.Context, w *worker, s *span) {
	locks, call := w.locks.(*holdfasts), w.nextTry()
	opts := locks.requestOptions(lockRequest{ttl: time.Duration(w.Schedule.TTL)})
	opts.Wait = patienceIn(s)
	var keys, tries []string
	for _, n := range rand.Perm(manyNames)[:1+rand.N(maxMany)] {
		keys, tries = append(keys, s.key("ha", n)), append(tries, fmt.Sprintf("%s:%d", call, len(tries)))
	}
	for i, key := range keys {
		w.rec.record(event{Kind: asked, Key: key, Try: tries[i], TTL: int64(opts.TTL), Wait: int64(opts.Wait)})
	}
	leases, err := locks.current.Load().AcquireAll(ctx, keys, opts)
	for i, key := range keys {
		if err != nil {
			w.rec.record(event{Kind: failed, Key: key, Try: tries[i], Err: err.Error()})
			continue
		}
		h := locks.newHeld(leases.Lease(key), key)
		w.rec.record(event{Kind: got, Key: key, Try: tries[i], Token: int64(h.token), ID: h.id, Until: h.until})
	}
	if err != nil {
		return
	}
	sleep(ctx, w.holdTime(s, 50*time.Millisecond))
	w.giveBack(ctx, keys, tries, leases.Release)
}

// readWriteTask has twelve workers that read, or one time in four write, the values under a read-write lock.
type readWriteTask struct{}

const (
	sideWorkers = 12
	sideReaders = 4
	reader      = "reader"
	writer      = "writer"
)

func (readWriteTask) title() string {
	return fmt.Sprintf("read and write lock of %d readers, %d workers", sideReaders, sideWorkers)
}
func (readWriteTask) family() string       { return "hr" }
func (readWriteTask) pause() time.Duration { return 500 * time.Millisecond }
func (readWriteTask) workers(o *order) int { return o.shareOf(sideWorkers) }

func (readWriteTask) takeTurn(ctx context.Context, w *worker, s *span) {
	locks, key, try := w.locks.(*holdfasts), s.key("hr", 0), w.nextTry()
	opts := locks.requestOptions(lockRequest{ttl: time.Duration(w.Schedule.TTL)})
	opts.Wait = patienceIn(s)
	lock, reads := locks.current.Load().RWLock(key, sideReaders), rand.IntN(4) > 0
	side, acquire := writer, lock.AcquireWrite
	if reads {
		side, acquire = reader, lock.AcquireRead
	}
	w.rec.record(event{Kind: asked, Key: key, Try: try, TTL: int64(opts.TTL), Slots: sideReaders, Side: side, Wait: int64(opts.Wait)})
	lease, err := acquire(ctx, opts)
	if err != nil {
		w.rec.record(event{Kind: failed, Key: key, Try: try, Err: err.Error()})
		return
	}
	h := locks.newHeld(lease, key)
	w.rec.record(event{Kind: got, Key: key, Try: try, Token: int64(h.token), ID: h.id, Until: h.until})
	if spell := w.holdTime(s, 100*time.Millisecond); reads {
		sleep(ctx, spell)
	} else {
		w.readAndWrite(ctx, key, 1, try, 1, h, spell)
	}
	w.giveBack(ctx, []string{key}, []string{try}, h.release)
}

// isFurther reports whether an attempt belongs to a call for several locks that is counted with its first
// attempt.
func isFurther(try string) bool {
	_, n, _ := strings.Cut(try, ":")
	return n != "" && n != "0"
}

// TaskReport holds the counts of a task that the main table lacks, and its violations.
type TaskReport struct {
	Calls      int   `json:"calls"`
	Granted    int   `json:"granted"` // granted calls
	Leases     int   `json:"leases"`  // granted leases
	Most       int   `json:"most"`    // most simultaneous holders of one lock or semaphore
	Overlaps   int   `json:"overlaps"`
	Duplicates int   `json:"duplicate_tokens"`
	Disorder   int   `json:"order_violations"`
	Lost       int   `json:"lost_leases"`
	Longest    int64 `json:"longest_call_ns"`
}

// count adds the history of a lock or, for its calls, of a semaphore.
func (t *TaskReport) count(l *lockHistory) {
	slot := strings.Contains(l.key, "#")
	for _, a := range l.attempts {
		if a.got != 0 && (l.most == 1 || l.sides) {
			t.Leases++
		}
		if slot || isFurther(a.try) {
			continue
		}
		t.Calls++
		if a.got != 0 {
			t.Granted++
		}
		t.Longest = max(t.Longest, max(a.got, a.gaveUp)-a.asked)
	}
	t.Most = max(t.Most, l.maxHolders())
}

func (t *TaskReport) String() string {
	return fmt.Sprintf("%d calls, %d granted %d locks, the longest took %v; at most %d held one of them at once; "+
		"%d overlaps where none is promised, %d duplicate tokens, %d out of order, %d leases lost",
		t.Calls, t.Granted, t.Leases, roundMilli(time.Duration(t.Longest)), t.Most, t.Overlaps, t.Duplicates, t.Disorder, t.Lost)
}

// taskFor returns the counts for the task of a lock; nil: the main table has them.
func (r *Report) taskFor(key string) *TaskReport {
	t := taskOf(key)
	if t == nil || t.title() == "" {
		return nil
	}
	if r.Tasks[t.title()] == nil {
		r.Tasks[t.title()] = new(TaskReport)
	}
	return r.Tasks[t.title()]
}
