//go:build linux

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memory"
)

// stoppedHolder records a holder that is suspended for longer than its TTL between its read and its write,
// while another client acquires the lock and writes. A storage with a fence rejects the late write.
func stoppedHolder(t *testing.T, fenced bool) (l *lockHistory, final string) {
	t.Helper()
	const key = "w0/h0"
	var events []event
	var guard fence.Guard
	record := func(e event) {
		e.T, e.Key, e.Store = time.Now().UnixNano(), key, byNobody
		events = append(events, e)
	}
	root := memory.New(1)
	increment := func(drv *memory.Driver, name string, work func()) {
		client, err := holdfast.New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		record(event{Kind: asked, Client: name, Try: name})
		lease, err := client.Acquire(t.Context(), key, &holdfast.AcquireOptions{TTL: 2 * time.Second, NoRenew: true})
		if err != nil {
			t.Fatal(err)
		}
		until := lease.Deadline().UnixNano()
		record(event{Kind: got, Client: name, Try: name, ID: lease.Owner(), Token: int64(lease.Token()), Until: until})
		read := final
		work()
		record(event{Kind: writing, Client: name, Try: name, Op: name, Prev: read})
		write := func() error { final = name; return nil }
		if fenced {
			err = guard.Do(key, lease.Token(), lease.Owner(), write)
		} else {
			err = write()
		}
		outcome := acked
		if errors.Is(err, fence.ErrStale) {
			outcome = refused
		} else if err != nil {
			t.Fatal(err)
		}
		record(event{Kind: outcome, Client: name, Try: name, Op: name})
		record(event{Kind: leaving, Client: name, Try: name})
		lease.Release(context.WithoutCancel(t.Context())) // fails: the lease has expired
	}
	increment(root, "stopped", func() {
		time.Sleep(3 * time.Second)
		increment(root.Peer(), "next", func() { time.Sleep(time.Millisecond) })
	})
	return sortByLock(events)[key], final
}

// The control: the judge finds the update that a late holder overwrites, and none if the storage compares
// tokens.
func TestUnfencedStorageLosesUpdates(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name          string
		fenced        bool
		lost, refused int
	}{
		{"without a fence", false, 1, 0},
		{"with a fence", true, 0, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, final := stoppedHolder(t, row.fenced)
				if lost := l.lostUpdates(byNobody, final); len(lost) != row.lost {
					t.Errorf("lost updates: %v, want %d", lost, row.lost)
				}
				if n := countResults(l.writes[byNobody], refused); n != row.refused {
					t.Errorf("%d writes were rejected, want %d", n, row.refused)
				}
				if n := len(l.findOverlaps((*attempt).workedInterval)); n != 1 {
					t.Errorf("%d pairs of holders worked at once, want 1", n)
				}
				if overlaps := l.findOverlaps((*attempt).trustedInterval); len(overlaps) > 0 {
					t.Errorf("two holders trusted the lock at once: %v", overlaps)
				}
			})
		})
	}
}
