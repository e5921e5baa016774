//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// patience bounds each step.
const patience = 30 * time.Second

// shortLease makes the lease of a killed holder end soon.
var shortLease = &holdfast.AcquireOptions{TTL: 5 * time.Second}

// checkServer runs the steps that need only a URL: it checks exclusion, order, wake-up and rising tokens of a
// lock, and runs the doctor.
func (r *row) checkServer(ctx context.Context, url string, res *result) {
	var made error
	if r.tables {
		made = migrateTables(ctx, url)
	}
	r.runDoctor(ctx, url, res)
	if made != nil {
		res.noteFailure("locks", made)
		return
	}
	clients, err := openAll(ctx, url, 3)
	if err != nil {
		res.noteFailure("locks", err)
		return
	}
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for _, step := range []struct {
		column string
		take   func(context.Context, []*holdfast.Client) (string, error)
	}{{"locks", checkExclusion}, {"order", queueUp}, {"wake-up", measureWakeUp}} {
		ctx, cancel := context.WithTimeout(ctx, patience)
		said, err := step.take(ctx, clients)
		cancel()
		if err != nil {
			res.noteFailure(step.column, err)
			if res.isRejected() {
				return
			}
			continue
		}
		res.cells[step.column] = said
	}
	if r.fence == nil {
		return
	}
	if err := r.fence(ctx); err != nil {
		res.noteFailure("fence", err)
		return
	}
	res.cells["fence"] = "yes"
}

func openAll(ctx context.Context, url string, n int) (all []*holdfast.Client, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range n {
		c, err := holdfast.Open(ctx, url, nil)
		if err != nil {
			for _, c := range all {
				c.Close()
			}
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// checkExclusion checks that no other client takes a held key, and that each next holder has a higher token.
func checkExclusion(ctx context.Context, clients []*holdfast.Client) (string, error) {
	var last holdfast.Token
	for i := range 6 {
		l, err := clients[i%3].Acquire(ctx, "servers:locks", shortLease)
		if err != nil {
			return "", err
		}
		defer l.Release(ctx)
		second, err := clients[(i+1)%3].TryAcquire(ctx, "servers:locks", shortLease)
		if err == nil {
			second.Release(ctx)
		}
		if !errors.Is(err, holdfast.ErrHeld) {
			return "", fmt.Errorf("two holders: TryAcquire of a held key returned %v", err)
		}
		if l.Token() <= last {
			return "", fmt.Errorf("token %d after %d", l.Token(), last)
		}
		last = l.Token()
		if err := l.Release(ctx); err != nil {
			return "", err
		}
	}
	return "yes", nil
}

// queueUp checks that two waiters are served in order of arrival. The second begins to wait once the service
// shows the first.
func queueUp(ctx context.Context, clients []*holdfast.Client) (string, error) {
	const key = "servers:order"
	holder, err := clients[0].Acquire(ctx, key, shortLease)
	if err != nil {
		return "", err
	}
	defer holder.Release(ctx)
	type served struct {
		who int
		err error
	}
	order := make(chan served, 2)
	for i, c := range clients[1:] {
		go func() {
			l, err := c.Acquire(ctx, key, shortLease)
			order <- served{i, err}
			if err == nil {
				l.Release(ctx) // after an error the lease expires
			}
		}()
		if err := awaitWaiters(ctx, clients[0], key, i+1); err != nil {
			return "", err
		}
	}
	if err := holder.Release(ctx); err != nil {
		return "", err
	}
	var whom []int
	for range 2 {
		s := <-order
		if s.err != nil {
			return "", s.err
		}
		whom = append(whom, s.who)
	}
	if !slices.IsSorted(whom) {
		return "", errors.New("the second waiter was served first")
	}
	return "yes", nil
}

// awaitWaiters waits until the service has n waiters, or for a second if it cannot tell.
func awaitWaiters(ctx context.Context, c *holdfast.Client, key string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	for {
		waiters, err := c.Queue(ctx, key, 10)
		pause := 20 * time.Millisecond
		switch {
		case errors.Is(err, holdfast.ErrUnsupported):
			pause = time.Second
		case err != nil:
			return err
		case len(waiters) >= n:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("none: waiter %d joins no queue", n)
		case <-time.After(pause):
		}
		if err != nil {
			return nil
		}
	}
}

// measureWakeUp returns the median time from a release to the next grant. It is a figure without a verdict.
func measureWakeUp(ctx context.Context, clients []*holdfast.Client) (string, error) {
	const key = "servers:wake"
	var waits []time.Duration
	for range 5 {
		holder, err := clients[0].Acquire(ctx, key, shortLease)
		if err != nil {
			return "", err
		}
		granted := make(chan error, 1)
		var at time.Time
		go func() {
			l, err := clients[1].Acquire(ctx, key, shortLease)
			at = time.Now()
			if err == nil {
				err = l.Release(ctx)
			}
			granted <- err
		}()
		time.Sleep(time.Second) // a waiter's first pauses are short on every engine
		released := time.Now()
		if err := holder.Release(ctx); err != nil {
			return "", err
		}
		if err := <-granted; err != nil {
			return "", err
		}
		waits = append(waits, at.Sub(released))
	}
	slices.Sort(waits)
	return waits[len(waits)/2].Round(time.Millisecond).String(), nil
}

// temporaryPath matches the address of a server in a temporary folder.
var temporaryPath = regexp.MustCompile(`/tmp/\S+`)

// runDoctor runs holdfast doctor and records each line that is not ok. The test servers do not sync to disk.
func (r *row) runDoctor(ctx context.Context, url string, res *result) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := runCommand(ctx, "doctor", "-q", "--ignore", "durability,persistence,tls", "--backend", url).CombinedOutput()
	var said []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "VERDICT") {
			said = append(said, shortenError(temporaryPath.ReplaceAllString(line, "")))
		}
	}
	text := strings.Join(said, "; ")
	if err != nil && !strings.HasPrefix(text, "warning ") { // faults come first
		res.noteFailure("doctor", fmt.Errorf("%s (%w)", text, err))
		return
	}
	res.cells["doctor"] = cmp.Or(text, "ok")
}
