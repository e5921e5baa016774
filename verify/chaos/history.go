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

// monotonicOf converts a time of this process to the host's clock. A pause between the two readings makes it
// early, never late.
func monotonicOf(t time.Time) int64 {
	now := monotonicNow()
	return now + int64(time.Until(t))
}

// kind is the kind of an event. The times of two events span an interval never longer than the true one.
type kind string

const (
	asked    kind = "asked"    // before the request for the lock
	got      kind = "got"      // after the grant
	failed   kind = "failed"   // not granted
	renewed  kind = "renewed"  // Until has changed
	reading  kind = "reading"  // before a claim and a read are sent to a storage
	seen     kind = "seen"     // the storage answered
	barred   kind = "barred"   // the storage rejected the claim, and so the read: stale
	writing  kind = "writing"  // before a write is sent
	acked    kind = "acked"    // the storage confirmed the write
	refused  kind = "refused"  // the storage rejected the write: stale
	unknown  kind = "unknown"  // no answer
	lost     kind = "lost"     // after the loss of the lease
	closing  kind = "closing"  // before the client is closed; Key is any key of the window
	leaving  kind = "leaving"  // before the release
	released kind = "released" // the release was confirmed; Err: its error
	crowded  kind = "crowded"  // a crowd of callers has its answers; Key is any key of the window
	blamed   kind = "blamed"   // the client reports a node as not up; Key is any key of the window
	strange  kind = "strange"  // the client sees a lock or a holder outside its prefix
	forcing  kind = "forcing"  // before a force-release of the grant ID
	observed kind = "observed" // an observer sees the leader ID in the term Token, none, or Err
	forced   kind = "forced"   // force-released; Err: the error of the service
)

// event is one line of a history.
type event struct {
	T      int64  `json:"t"`
	Kind   kind   `json:"e"`
	Client string `json:"c"`
	Key    string `json:"k,omitempty"`
	Try    string `json:"try,omitempty"` // its attempt; renewed events have ID instead
	Token  int64  `json:"token,omitempty"`
	ID     string `json:"id,omitempty"`
	Until  int64  `json:"until,omitempty"` // end of trust
	From   string `json:"from,omitempty"`  // owner of the lease to adopt
	TTL    int64  `json:"ttl,omitempty"`   // requested TTL, ns
	Least  int64  `json:"least,omitempty"` // requested MinHold, ns
	Wait   int64  `json:"wait,omitempty"`  // longest wait of the call, ns; 0: until its window ends
	Slots  int    `json:"slots,omitempty"` // slots of the requested semaphore; 0: a lock
	Side   string `json:"side,omitempty"`  // reader or writer of a read-write lock with Slots readers
	Store  string `json:"store,omitempty"`
	Op     string `json:"op,omitempty"`   // the written value, unique
	Prev   string `json:"prev,omitempty"` // the value that was read
	Err    string `json:"err,omitempty"`

	Callers int `json:"callers,omitempty"` // number of callers in a crowd
	Served  int `json:"served,omitempty"`
	Freed   int `json:"freed,omitempty"` // callers whose release was confirmed in time
}

// recorder writes events to one file per window. Records survive a kill of the process, because the kernel has
// them.
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
		panic(err) // cannot fail: all fields can be marshalled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.file(windowOf(e.Key))
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if err != nil { // a history with gaps proves nothing
		fmt.Fprintln(os.Stderr, "chaos: history:", err)
		os.Exit(1)
	}
}

// file returns the open file of a window; it keeps the last few open. The caller holds mu.
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

// readHistory reads the events of all clients in a window.
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

// dropHistory removes the history of a window.
func dropHistory(dir string, window int) error { return removeFiles(historyFile(dir, window, "*")) }

// dropHistories removes the histories of an earlier run.
func dropHistories(dir string) error { return removeFiles(filepath.Join(dir, "w*.jsonl")) }

func removeFiles(pattern string) error {
	files, err := filepath.Glob(pattern)
	for _, name := range files {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}
