//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/verify/tool"
)

const (
	key = "report"
	// patience bounds the wait for a lock, an answer or a notice.
	patience = 75 * time.Second
	// settle is the delay before a program is asked for its state.
	settle = time.Second
)

// scene is one event for a holder. run returns the cell of the table.
type scene struct {
	name, title string
	run         func(context.Context, *stage) (string, error)
}

var scenes = []scene{
	{"work", "work outlasts the TTL", workBeyondTTL},
	{"hang", "its network hangs", hangHolder},
	{"stop", "its process is stopped", pauseHolder},
	{"limit", "a wait of 1 s", limitWait},
	{"empty", "the server comes back empty", replaceByEmptyServer},
	{"shared", "a key that Holdfast holds", shareLock},
}

// stage is a server with a holder, and a program whose two workers want the same lock.
type stage struct {
	*service
	peer   *peer
	holder *program
	others *program
}

func openStage(ctx context.Context, p *peer) (s *stage, err error) {
	s = &stage{peer: p}
	if s.service, err = startService(ctx, p.server); err != nil {
		return nil, err
	}
	if s.holder, err = launchProgram(ctx, p, s.service.holder.Addr(), key, 1); err == nil {
		s.others, err = launchProgram(ctx, p, s.service.others.Addr(), key, 2)
	}
	if err == nil {
		err = s.warmUp(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// warmUp makes each worker acquire the lock once: the first time costs connections, scripts, tables and
// classes.
func (s *stage) warmUp(ctx context.Context) error {
	for _, w := range []struct {
		*program
		worker int
	}{{s.holder, 0}, {s.others, 0}, {s.others, 1}} {
		if _, err := s.takeLock(ctx, w.program, w.worker); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
		if answer, err := w.sendCommand(ctx, patience, w.worker, "unlock"); err != nil {
			return fmt.Errorf("warm up: %q, %w", answer, err)
		}
	}
	return nil
}

func (s *stage) close() error {
	for _, p := range []*program{s.holder, s.others} {
		if p != nil {
			p.stop()
		}
	}
	return s.stop()
}

// takeLock makes a worker acquire the lock, with as many requests as that takes. It returns the time of the
// grant.
func (s *stage) takeLock(ctx context.Context, p *program, worker int) (time.Time, error) {
	end := time.Now().Add(patience)
	for {
		limit := time.Until(end)
		if limit <= 0 {
			return time.Time{}, errNoAnswer
		}
		answer, err := p.sendCommand(ctx, limit, worker, fmt.Sprintf("lock %d", limit.Milliseconds()))
		if err != nil {
			return time.Time{}, err
		}
		if answer == "held" {
			return time.Now(), nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// beginScene makes the holder acquire the lock, and the first of the others wait for it.
func (s *stage) beginScene(ctx context.Context) (other <-chan time.Time, err error) {
	if _, err := s.takeLock(ctx, s.holder, 0); err != nil {
		return nil, err
	}
	return s.startWait(ctx), nil
}

// startWait makes the first of the others wait for the lock. The channel receives the time of the grant.
func (s *stage) startWait(ctx context.Context) <-chan time.Time {
	other := make(chan time.Time, 1)
	go func() {
		defer close(other)
		if at, err := s.takeLock(ctx, s.others, 0); err == nil {
			other <- at
		}
	}()
	return other
}

// outcome collects the facts of a cell, in order.
type outcome struct {
	facts []string
}

func (o *outcome) addText(format string, args ...any) {
	o.facts = append(o.facts, fmt.Sprintf(format, args...))
}
func (o *outcome) String() string { return strings.Join(o.facts, "; ") }

// inSeconds formats a time in tenths of a second.
func inSeconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// addNotices adds the unrequested messages of the library since a time. Each text counts once.
func (s *stage) addNotices(o *outcome, since time.Time) {
	var seen []string
	for {
		select {
		case n := <-s.holder.notices[0]:
			if !slices.Contains(seen, n.text) {
				seen = append(seen, n.text)
				what := "told"
				if n.text != "lost" {
					what += " " + n.text
				}
				o.addText("%s %s", what, inSeconds(max(0, n.at.Sub(since))))
			}
			continue
		default:
		}
		if seen == nil {
			o.addText("not told")
		}
		return
	}
}

// addAnswer adds the library's answer to the holder's question whether it still has the lock.
func (s *stage) addAnswer(ctx context.Context, o *outcome) (answered bool, err error) {
	answer, err := s.holder.sendCommand(ctx, 5*time.Second, 0, "check")
	switch {
	case errors.Is(err, errNoAnswer):
		o.addText("asked: silent")
		return false, nil
	case err != nil:
		return false, err
	case answer != "none": // the column "asked" shows which library has no check
		o.addText("asked: %s", briefAnswer(answer))
	}
	return true, nil
}

// addUnlock adds the outcome of the late release, and whether the lock of another holder survives it.
func (s *stage) addUnlock(ctx context.Context, o *outcome, answered bool) error {
	if !answered { // the worker still waits for its answer
		select {
		case <-s.holder.answers[0]:
		case <-time.After(patience):
			o.addText("unlock: not tried")
			return nil
		}
	}
	// The other worker's lock may have expired as well. Then the third worker acquires it now.
	next := 1
	switch answer, err := s.others.sendCommand(ctx, patience, 1, "try"); {
	case err != nil:
		return err
	case answer == "held":
		next = 0
	}
	answer, err := s.holder.sendCommand(ctx, patience, 0, "unlock")
	switch {
	case errors.Is(err, errNoAnswer):
		o.addText("unlock: silent")
		return nil
	case err != nil:
		return err
	}
	o.addText("unlock: %s", briefAnswer(answer))
	if answer, err = s.others.sendCommand(ctx, patience, next, "try"); err != nil {
		return err
	}
	if answer == "held" {
		o.addText("**frees the next lock**")
	}
	return nil
}

// briefAnswer returns the first word of an answer. The text of an error differs by version, and the table has
// no room for it.
func briefAnswer(answer string) string {
	kind, _, _ := strings.Cut(answer, ": ")
	kind, _, _ = strings.Cut(kind, ",")
	if kind == "no" {
		return "error"
	}
	return kind
}

// workBeyondTTL makes the holder work for twice its TTL, without a fault.
func workBeyondTTL(ctx context.Context, s *stage) (string, error) {
	since := time.Now()
	other, err := s.beginScene(ctx)
	if err != nil {
		return "", err
	}
	select {
	case <-time.After(2 * ttl):
		return "renewed", nil
	case at, ok := <-other:
		if !ok {
			return "", errNoAnswer
		}
		o := &outcome{}
		o.addText("other %s", inSeconds(at.Sub(since)))
		time.Sleep(settle)
		return s.addConclusion(ctx, o, since)
	}
}

// addConclusion adds the holder's notices and answers, and the outcome of its unlock.
func (s *stage) addConclusion(ctx context.Context, o *outcome, since time.Time) (string, error) {
	s.addNotices(o, since)
	answered, err := s.addAnswer(ctx, o)
	if err != nil {
		return "", err
	}
	if err := s.addUnlock(ctx, o, answered); err != nil {
		return "", err
	}
	return o.String(), nil
}

// hangHolder stops all data between the holder and the server, until a TTL after another worker has the lock.
func hangHolder(ctx context.Context, s *stage) (string, error) {
	if _, err := s.takeLock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	since := time.Now()
	s.service.holder.Blackhole(true, true)
	other := s.startWait(ctx)
	o := &outcome{}
	at, ok := <-other
	if !ok {
		return "", errNoAnswer
	}
	o.addText("other %s", inSeconds(at.Sub(since)))
	time.Sleep(ttl)
	s.addNotices(o, since)
	answered, err := s.addAnswer(ctx, o)
	if err != nil {
		return "", err
	}
	s.service.holder.Blackhole(false, false)
	time.Sleep(ttl)
	late := &outcome{}
	s.addNotices(late, since)
	if slices.Contains(o.facts, "not told") && !slices.Contains(late.facts, "not told") {
		o.addText("told when it is back")
	}
	if err := s.addUnlock(ctx, o, answered); err != nil {
		return "", err
	}
	return o.String(), nil
}

// pauseHolder suspends the holder's process until another worker has the lock, and at least for twice the TTL.
func pauseHolder(ctx context.Context, s *stage) (string, error) {
	if _, err := s.takeLock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	since := time.Now()
	if err := s.holder.pause(); err != nil {
		return "", err
	}
	defer s.holder.resume()
	other := s.startWait(ctx)
	at, ok := <-other
	if !ok {
		return "", errNoAnswer
	}
	o := &outcome{}
	o.addText("other %s", inSeconds(at.Sub(since)))
	time.Sleep(max(settle, 2*ttl-time.Since(since)))
	if err := s.holder.resume(); err != nil {
		return "", err
	}
	resumed := time.Now()
	time.Sleep(ttl) // let a renewal run
	return s.addConclusion(ctx, o, resumed)
}

// replaceByEmptyServer replaces the server by an empty one, and makes another client ask for the lock.
func replaceByEmptyServer(ctx context.Context, s *stage) (string, error) {
	if _, err := s.takeLock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	if err := s.replaceServer(ctx); err != nil {
		return "", err
	}
	since := time.Now()
	s.others.stop()
	var err error
	if s.others, err = launchProgram(ctx, s.peer, s.service.others.Addr(), key, 2); err != nil {
		return "", err
	}
	asked := time.Now()
	at, ok := <-s.startWait(ctx)
	if !ok {
		return "", errNoAnswer
	}
	o := &outcome{}
	if waited := at.Sub(asked); waited < ttl/2 { // its first lock, which needs connections
		o.addText("other at once")
	} else {
		o.addText("other %s", inSeconds(waited))
	}
	time.Sleep(max(0, 2*ttl-time.Since(since)))
	return s.addConclusion(ctx, o, since)
}

// limitWait makes the holder wait for a second: behind another holder, and for a server that does not answer.
func limitWait(ctx context.Context, s *stage) (string, error) {
	o := &outcome{}
	if _, err := s.takeLock(ctx, s.others, 0); err != nil {
		return "", err
	}
	since := time.Now()
	answer, err := s.holder.sendCommand(ctx, patience, 0, "lock 1000")
	switch {
	case errors.Is(err, errNoAnswer):
		o.addText("busy: no end")
		return o.String(), nil
	case err != nil:
		return "", err
	}
	if answer == "held" {
		o.addText("**both hold it** after %s", inSeconds(time.Since(since)))
		return o.String(), nil
	}
	o.addText("busy: %s", inSeconds(time.Since(since)))
	if answer, err := s.others.sendCommand(ctx, patience, 0, "unlock"); err != nil || strings.HasPrefix(answer, "error") {
		return "", errors.Join(fmt.Errorf("unlock by another: %q", answer), err)
	}
	return s.lockUnanswered(ctx, o)
}

// unansweredCount is the number of unanswered requests per cell: it is chance whether the server receives one in
// time.
const unansweredCount = 3

// lockUnanswered makes the holder wait for a server that does not answer, and checks for leftovers when it
// answers again.
func (s *stage) lockUnanswered(ctx context.Context, o *outcome) (string, error) {
	var longest, stays time.Duration
	tries, left := 0, 0
	for ; tries < unansweredCount && longest < patience/3; tries++ {
		s.service.holder.Blackhole(true, true)
		since := time.Now()
		answer, err := s.holder.sendCommand(ctx, patience, 0, "lock 1000")
		longest = max(longest, time.Since(since))
		s.service.holder.Blackhole(false, false)
		switch {
		case errors.Is(err, errNoAnswer):
			o.addText("hung: no end")
			return o.String(), nil
		case err != nil:
			return "", err
		case answer == "held":
			o.addText("hung: **held** after %s", inSeconds(longest))
			return o.String(), nil
		}
		since = time.Now()
		time.Sleep(2 * settle) // late requests have arrived, and some libraries have undone them
		answer, err = s.others.sendCommand(ctx, patience, 1, "try")
		if err != nil {
			return "", err
		}
		if answer != "held" {
			left++
			at, err := s.takeLock(ctx, s.others, 1)
			if errors.Is(err, errNoAnswer) {
				o.addText("hung: %s; **stays**: no end", inSeconds(longest))
				return o.String(), nil
			}
			if err != nil {
				return "", err
			}
			stays = max(stays, at.Sub(since))
		}
		if answer, err := s.others.sendCommand(ctx, patience, 1, "unlock"); err != nil || strings.HasPrefix(answer, "error") {
			return "", errors.Join(fmt.Errorf("unlock by another: %q", answer), err)
		}
	}
	o.addText("hung: %s", inSeconds(longest))
	if left > 0 {
		o.addText("**stays** %s (%d of %d)", inSeconds(stays), left, tries)
	}
	return o.String(), nil
}

// shareLock makes Holdfast meet the library's lock, and the library meet Holdfast's lock.
func shareLock(ctx context.Context, s *stage) (string, error) {
	if strings.HasPrefix(s.peer.lib, "holdfast-") || s.kind == "kubernetes" { // Holdfast has no engine for that
		return "–", nil
	}
	if _, err := s.takeLock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	name, o := key, &outcome{}
	url := s.peer.urlFor(s.service.others.Addr())
	var err error
	switch s.kind {
	case "redis":
		if name, err = s.findKey(ctx); err == nil {
			o.addText("`%s`", strings.ReplaceAll(name, key, "NAME"))
		}
	case "postgres":
		err = tool.MakeTables(ctx, url)
	}
	if err != nil {
		return "", err
	}
	ours, err := holdfast.Open(ctx, url, nil)
	if err != nil {
		return "", err
	}
	defer ours.Close()
	lease, err := ours.TryAcquire(ctx, name, &holdfast.AcquireOptions{TTL: 5 * ttl})
	if err == nil {
		o.addText("not shared")
		return o.String(), lease.Release(ctx)
	}
	if !errors.Is(err, holdfast.ErrHeld) {
		return "", err
	}
	if answer, err := s.holder.sendCommand(ctx, patience, 0, "unlock"); err != nil || strings.HasPrefix(answer, "error") {
		return "", errors.Join(fmt.Errorf("unlock: %q", answer), err)
	}
	err = s.meetHoldfast(ctx, o, ours, name)
	return o.String(), err
}

// findKey returns the key of the holder's lock. Some libraries keep more keys, such as those of their waiters.
func (s *stage) findKey(ctx context.Context) (string, error) {
	data := redis.NewClient(&redis.Options{Addr: s.service.others.Addr()})
	defer data.Close()
	keys, err := data.Keys(ctx, "*").Result()
	if err != nil {
		return "", err
	}
	keys = slices.DeleteFunc(keys, func(k string) bool { return !strings.Contains(k, key) })
	if len(keys) != 1 {
		return "", fmt.Errorf("the keys of the lock are %q", keys)
	}
	return keys[0], nil
}

// meetHoldfast adds the library's behavior behind a lock of Holdfast, and behind a key of another type: a hash
// like Redisson's for libraries with plain strings, and a string for the others.
func (s *stage) meetHoldfast(ctx context.Context, o *outcome, ours *holdfast.Client, name string) error {
	lease, err := ours.Acquire(ctx, name, &holdfast.AcquireOptions{TTL: 5 * ttl}) // renewed until the release
	if err != nil {
		return err
	}
	answer, err := s.holder.sendCommand(ctx, patience, 0, "lock 1000")
	if err = errors.Join(err, lease.Release(ctx)); err != nil {
		return err
	}
	if answer == "held" {
		o.addText("**both hold it**")
		return nil
	}
	o.addText("excluded")
	data := redis.NewClient(&redis.Options{Addr: s.service.others.Addr()})
	defer data.Close()
	if s.peer.lib == "redisson" {
		err = data.Set(ctx, name, "another", 0).Err()
	} else {
		err = data.HSet(ctx, name, "another", 1).Err()
	}
	if err != nil {
		return err
	}
	switch again, err := s.holder.sendCommand(ctx, patience, 0, "lock 1000"); {
	case errors.Is(err, errNoAnswer):
		o.addText("other type: no end")
	case err != nil:
		return err
	case again == "held":
		o.addText("other type: **held**")
	case again != answer:
		o.addText("other type: %s", briefAnswer(again))
	}
	return nil
}
