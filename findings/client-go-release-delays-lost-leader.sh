#!/usr/bin/env bash
# client-go: with ReleaseOnCancel, the context of a leader that has lost its connection ends only after another replica leads.
#
# Versions: client-go 0.37.2.
# Expected: a leader that cannot renew for RenewDeadline stops leading: the context of OnStartedLeading ends then, before LeaseDuration is
#           over. For that reason RenewDeadline must be the shorter of the two.
# Seen:     requests of the first leader get no answer from some moment on. After RenewDeadline (10 s) it first tries to release the
#           Lease, for another RenewDeadline, and ends the context only then. The second leads meanwhile, after LeaseDuration (15 s).
#           Without ReleaseOnCancel the context ends in time.
# Locks:    two leaders work at once for some seconds, with the setting that users choose for quick hand-overs.
# Holdfast: the context of a leader ends with its lease, by the local clock; that needs no request and no answer.
# Output:   client-go-release-delays-lost-leader: as stated: ReleaseOnCancel false: context ended, second leads; true: second leads, context ended
. "$(dirname "$0")/lib.sh"
seen=$(run_go k8s.io/client-go@v0.37.2 <<'GO'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// record is the Lease in the place of an API server: writes that do not follow the last read are conflicts.
type record struct {
	mu      sync.Mutex
	version int
	value   *resourcelock.LeaderElectionRecord
}

// lock is one client's way to the record. While it hangs, requests end with their context, unanswered.
type lock struct {
	*record
	name  string
	hangs atomic.Bool
	read  int
}

func (l *lock) wait(ctx context.Context) error {
	if l.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.wait(ctx); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.value == nil {
		return nil, nil, errors.NewNotFound(leases, "job")
	}
	l.read = l.version
	value := *l.value
	raw, err := json.Marshal(value)
	return &value, raw, err
}

func (l *lock) put(ctx context.Context, r resourcelock.LeaderElectionRecord, create bool) error {
	if err := l.wait(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if create != (l.value == nil) || !create && l.read != l.version {
		return errors.NewConflict(leases, "job", fmt.Errorf("version %d", l.version))
	}
	l.version++
	l.read, l.value = l.version, &r
	return nil
}

func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error { return l.put(ctx, r, true) }
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error { return l.put(ctx, r, false) }
func (l *lock) RecordEvent(string)                                                   {}
func (l *lock) Identity() string                                                     { return l.name }
func (l *lock) Describe() string                                                     { return "job" }

// run returns what happened first after the way of the first leader began to hang, and then second.
func run(release bool) string {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := make(chan string, 10)
	leads := make(chan struct{})
	shared := &record{}
	first, second := &lock{record: shared, name: "first"}, &lock{record: shared, name: "second"}
	start := func(l *lock, lead func(context.Context)) {
		go leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: l, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: time.Second, ReleaseOnCancel: release,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
		})
	}
	start(first, func(work context.Context) { close(leads); <-work.Done(); events <- "context ended" })
	<-leads
	start(second, func(context.Context) { events <- "second leads" })
	time.Sleep(3 * time.Second)
	first.hangs.Store(true)
	return strings.Join([]string{<-events, <-events}, ", ")
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	without := make(chan string)
	go func() { without <- run(false) }()
	with := run(true)
	fmt.Printf("ReleaseOnCancel false: %s; true: %s\n", <-without, with)
}
GO
)
verdict 'ReleaseOnCancel false: context ended, second leads; true: second leads, context ended' "$seen" "client-go 0.37.2"
