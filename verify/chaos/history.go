//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// monotonicNow reads the host's CLOCK_MONOTONIC, in ns: all processes of a host share it.
func monotonicNow() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // cannot fail on Linux
	}
	return t.Nano()
}

// monotonicOf returns a time of this process on the host's clock. A pause between the two
// readings makes it early, never late.
func monotonicOf(t time.Time) int64 {
	now := monotonicNow()
	return now + int64(time.Until(t))
}

// kind is the kind of an event. Its times make an interval never longer than the true one.
type kind string

const (
	asked    kind = "asked"    // before the lock is asked for
	got      kind = "got"      // after it was granted
	failed   kind = "failed"   // it was not granted
	renewed  kind = "renewed"  // Until has moved
	reading  kind = "reading"  // before a claim and a read are sent
	seen     kind = "seen"     // the storage answered
	barred   kind = "barred"   // the storage refused the claim, and the read with it: stale
	writing  kind = "writing"  // before a write is sent
	acked    kind = "acked"    // the storage confirmed it
	refused  kind = "refused"  // the storage refused it: stale
	unknown  kind = "unknown"  // no answer
	lost     kind = "lost"     // after the lease was lost
	closing  kind = "closing"  // before the client is closed; Key is one of the window
	leaving  kind = "leaving"  // before the lock is released
	released kind = "released" // the service confirmed it; Err: what it said otherwise
	crowded  kind = "crowded"  // a crowd of callers has its answers; Key is one of the window
	blamed   kind = "blamed"   // the client takes a node to be ill; Key is one of the window
	strange  kind = "strange"  // the client sees a lock or a holder that is not of its prefix
	forcing  kind = "forcing"  // before the lock is taken from the grant that ID names
	observed kind = "observed" // an observer sees the leader ID in the term Token; or none, or Err
	forced   kind = "forced"   // it was; Err: what the service said otherwise
)

// event is one line of a history.
type event struct {
	T      int64  `json:"t"`
	Kind   kind   `json:"e"`
	Client string `json:"c"`
	Key    string `json:"k,omitempty"`
	Try    string `json:"try,omitempty"` // the attempt it belongs to; Renewed events have ID instead
	Token  int64  `json:"token,omitempty"`
	ID     string `json:"id,omitempty"`
	Until  int64  `json:"until,omitempty"` // the lease is trusted until then
	From   string `json:"from,omitempty"`  // whose lease is to be adopted
	TTL    int64  `json:"ttl,omitempty"`   // that is asked for, ns
	Least  int64  `json:"least,omitempty"` // and for how long the lock is to be kept, ns
	Wait   int64  `json:"wait,omitempty"`  // how long the call waits at most, ns; 0: until its window ends
	Slots  int    `json:"slots,omitempty"` // of the semaphore that is asked for, of which got then names one; 0: it is a lock
	Side   string `json:"side,omitempty"`  // reader or writer, where Slots are the readers of a read and write lock; got then names that
	Store  string `json:"store,omitempty"`
	Op     string `json:"op,omitempty"`   // the value written, which no other write has
	Prev   string `json:"prev,omitempty"` // the value that was read
	Err    string `json:"err,omitempty"`

	Callers int `json:"callers,omitempty"` // of a crowd
	Served  int `json:"served,omitempty"`
	Freed   int `json:"freed,omitempty"` // of those: their release was confirmed in time
}

// recorder writes events to a file for each window. What was recorded survives a
// kill of the process, for it is with the kernel.
type recorder struct {
	dir, client string

	mu    sync.Mutex // guards files
	files map[int]*os.File
}

func (r *recorder) record(e event) {
	e.Client = r.client
	if e.T == 0 {
		e.T = monotonicNow()
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // it has no field that cannot be marshalled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.file(windowOf(e.Key))
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if err != nil { // a history with holes proves nothing
		fmt.Fprintln(os.Stderr, "chaos: history:", err)
		os.Exit(1)
	}
}

// file is open for the last few windows. The caller holds mu.
func (r *recorder) file(window int) (*os.File, error) {
	if f := r.files[window]; f != nil {
		return f, nil
	}
	for w, f := range r.files {
		if w < window-3 {
			f.Close()
			delete(r.files, w)
		}
	}
	f, err := os.OpenFile(historyFile(r.dir, window, r.client), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		r.files[window] = f
	}
	return f, err
}

func historyFile(dir string, window int, client string) string {
	return filepath.Join(dir, fmt.Sprintf("w%05d-%s.jsonl", window, client))
}

// readHistory reads what all clients recorded of a window.
func readHistory(dir string, window int) ([]event, error) {
	files, err := filepath.Glob(historyFile(dir, window, "*"))
	if err != nil {
		return nil, err
	}
	var all []event
	for _, name := range files {
		if all, err = appendFile(all, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func appendFile(all []event, name string) ([]event, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, e)
	}
	return all, lines.Err()
}

// dropHistory removes what was recorded of a window.
func dropHistory(dir string, window int) error { return removeFiles(historyFile(dir, window, "*")) }

// dropHistories removes what an earlier run has left, which is not the history of this one.
func dropHistories(dir string) error { return removeFiles(filepath.Join(dir, "w*.jsonl")) }

func removeFiles(pattern string) error {
	files, err := filepath.Glob(pattern)
	for _, name := range files {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}
