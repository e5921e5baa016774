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
)

const (
	key = "report"
	// patience bounds the wait for a lock, an answer or a notice.
	patience = 75 * time.Second
	// settle is the time that a program gets before it is asked what it knows.
	settle = time.Second
)

// scene is one thing that happens to a holder. run returns the cell of the table.
type scene struct {
	name, title string
	run         func(context.Context, *stage) (string, error)
}

var scenes = []scene{
	{"work", "work outlasts the TTL", outlast},
	{"hang", "its network hangs", hang},
	{"stop", "its process is stopped for longer than the TTL", pauseHolder},
	{"limit", "a wait with a limit of 1 s", limitWait},
	{"empty", "the server comes back empty", empty},
	{"shared", "a key that Holdfast holds", share},
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
	if s.holder, err = launch(ctx, p, s.service.holder.Addr(), key, 1); err == nil {
		s.others, err = launch(ctx, p, s.service.others.Addr(), key, 2)
	}
	if err == nil {
		err = s.warm(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// warm has each worker take the lock once: the first time costs connections, scripts, tables and classes.
func (s *stage) warm(ctx context.Context) error {
	for _, w := range []struct {
		*program
		worker int
	}{{s.holder, 0}, {s.others, 0}, {s.others, 1}} {
		if _, err := s.lock(ctx, w.program, w.worker); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
		if answer, err := w.do(ctx, patience, w.worker, "unlock"); err != nil {
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

// lock has a worker take the lock, however often it has to ask for that. It returns when the worker had it.
func (s *stage) lock(ctx context.Context, p *program, worker int) (time.Time, error) {
	end := time.Now().Add(patience)
	for {
		limit := time.Until(end)
		if limit <= 0 {
			return time.Time{}, errNoAnswer
		}
		answer, err := p.do(ctx, limit, worker, fmt.Sprintf("lock %d", limit.Milliseconds()))
		if err != nil {
			return time.Time{}, err
		}
		if answer == "held" {
			return time.Now(), nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// begin has the holder take the lock, and the first of the others wait for it.
func (s *stage) begin(ctx context.Context) (other <-chan time.Time, err error) {
	if _, err := s.lock(ctx, s.holder, 0); err != nil {
		return nil, err
	}
	return s.wait(ctx), nil
}

// wait has the first of the others wait for the lock. The channel receives when it has it.
func (s *stage) wait(ctx context.Context) <-chan time.Time {
	other := make(chan time.Time, 1)
	go func() {
		defer close(other)
		if at, err := s.lock(ctx, s.others, 0); err == nil {
			other <- at
		}
	}()
	return other
}

// outcome collects the facts of a cell, in their order.
type outcome struct {
	facts []string
}

func (o *outcome) add(format string, args ...any) {
	o.facts = append(o.facts, fmt.Sprintf(format, args...))
}
func (o *outcome) String() string { return strings.Join(o.facts, "; ") }

// seconds prints a time to a tenth.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// notices adds what the library has told by itself since a moment. Each text counts once.
func (s *stage) notices(o *outcome, since time.Time) {
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
				o.add("%s after %s", what, seconds(max(0, n.at.Sub(since))))
			}
			continue
		default:
		}
		if seen == nil {
			o.add("not told")
		}
		return
	}
}

// ask adds what the library answers when the holder asks whether it still has the lock.
func (s *stage) ask(ctx context.Context, o *outcome) (answered bool, err error) {
	answer, err := s.holder.do(ctx, 5*time.Second, 0, "check")
	switch {
	case errors.Is(err, errNoAnswer):
		o.add("asked: no answer in 5 s")
		return false, nil
	case err != nil:
		return false, err
	case answer == "none":
		o.add("cannot be asked")
	default:
		o.add("asked: %s", short(answer))
	}
	return true, nil
}

// unlock adds how the late release ends, and whether the lock of another holder outlives it.
func (s *stage) unlock(ctx context.Context, o *outcome, answered bool) error {
	if !answered { // the worker still waits for its answer
		select {
		case <-s.holder.answers[0]:
		case <-time.After(patience):
			o.add("unlock: not tried")
			return nil
		}
	}
	// The lock of the other may have lapsed as well. Then the third takes it now.
	next := 1
	switch answer, err := s.others.do(ctx, patience, 1, "try"); {
	case err != nil:
		return err
	case answer == "held":
		next = 0
	}
	answer, err := s.holder.do(ctx, patience, 0, "unlock")
	switch {
	case errors.Is(err, errNoAnswer):
		o.add("unlock: no answer in %s", seconds(patience))
		return nil
	case err != nil:
		return err
	}
	o.add("unlock: %s", short(answer))
	if answer, err = s.others.do(ctx, patience, next, "try"); err != nil {
		return err
	}
	if answer == "held" {
		o.add("**frees the lock of the next holder**")
	}
	return nil
}

// short cuts the text of an answer for a cell.
func short(text string) string {
	text = strings.NewReplacer("|", "/", "`", "'").Replace(text)
	if kind, rest, ok := strings.Cut(text, ": "); ok && (kind == "error" || kind == "no") {
		text = rest
		if r := []rune(text); len(r) > 60 {
			text = string(r[:57]) + "..."
		}
		text = "`" + text + "`"
	}
	return text
}

// outlast lets the holder work for twice its TTL, with nothing else wrong.
func outlast(ctx context.Context, s *stage) (string, error) {
	since := time.Now()
	other, err := s.begin(ctx)
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
		o.add("other after %s", seconds(at.Sub(since)))
		time.Sleep(settle)
		return s.conclude(ctx, o, since)
	}
}

// conclude adds what the holder is told, answered, and what its unlock does.
func (s *stage) conclude(ctx context.Context, o *outcome, since time.Time) (string, error) {
	s.notices(o, since)
	answered, err := s.ask(ctx, o)
	if err != nil {
		return "", err
	}
	if err := s.unlock(ctx, o, answered); err != nil {
		return "", err
	}
	return o.String(), nil
}

// hang stops all bytes between the holder and the server, until a TTL after another has the lock.
func hang(ctx context.Context, s *stage) (string, error) {
	if _, err := s.lock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	since := time.Now()
	s.service.holder.Blackhole(true, true)
	other := s.wait(ctx)
	o := &outcome{}
	at, ok := <-other
	if !ok {
		return "", errNoAnswer
	}
	o.add("other after %s", seconds(at.Sub(since)))
	time.Sleep(ttl)
	s.notices(o, since)
	answered, err := s.ask(ctx, o)
	if err != nil {
		return "", err
	}
	s.service.holder.Blackhole(false, false)
	time.Sleep(ttl)
	late := &outcome{}
	s.notices(late, since)
	if slices.Contains(o.facts, "not told") && !slices.Contains(late.facts, "not told") {
		o.add("told once the network is back")
	}
	if err := s.unlock(ctx, o, answered); err != nil {
		return "", err
	}
	return o.String(), nil
}

// pauseHolder stops the process of the holder until another has the lock, and at least for twice the TTL.
func pauseHolder(ctx context.Context, s *stage) (string, error) {
	if _, err := s.lock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	since := time.Now()
	if err := s.holder.pause(); err != nil {
		return "", err
	}
	defer s.holder.resume()
	other := s.wait(ctx)
	at, ok := <-other
	if !ok {
		return "", errNoAnswer
	}
	o := &outcome{}
	o.add("other after %s", seconds(at.Sub(since)))
	time.Sleep(max(settle, 2*ttl-time.Since(since)))
	if err := s.holder.resume(); err != nil {
		return "", err
	}
	resumed := time.Now()
	time.Sleep(ttl) // what renews has had its turn
	return s.conclude(ctx, o, resumed)
}

// empty replaces the server by an empty one, and starts another client.
func empty(ctx context.Context, s *stage) (string, error) {
	if _, err := s.lock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	if err := s.replace(ctx); err != nil {
		return "", err
	}
	since := time.Now()
	s.others.stop()
	var err error
	if s.others, err = launch(ctx, s.peer, s.service.others.Addr(), key, 2); err != nil {
		return "", err
	}
	asked := time.Now()
	at, ok := <-s.wait(ctx)
	if !ok {
		return "", errNoAnswer
	}
	o := &outcome{}
	if waited := at.Sub(asked); waited < ttl/2 { // its first lock, for which it connects
		o.add("other at once")
	} else {
		o.add("other after %s", seconds(waited))
	}
	time.Sleep(max(0, 2*ttl-time.Since(since)))
	return s.conclude(ctx, o, since)
}

// limitWait has the holder wait for a second: behind another holder, and for a server that does not answer.
func limitWait(ctx context.Context, s *stage) (string, error) {
	o := &outcome{}
	if _, err := s.lock(ctx, s.others, 0); err != nil {
		return "", err
	}
	since := time.Now()
	answer, err := s.holder.do(ctx, patience, 0, "lock 1000")
	switch {
	case errors.Is(err, errNoAnswer):
		o.add("behind a holder: no end in %s", seconds(patience))
		return o.String(), nil
	case err != nil:
		return "", err
	}
	o.add("behind a holder: %s, %s", seconds(time.Since(since)), short(answer))
	if answer == "held" {
		return o.String(), nil
	}
	if answer, err := s.others.do(ctx, patience, 0, "unlock"); err != nil || strings.HasPrefix(answer, "error") {
		return "", errors.Join(fmt.Errorf("unlock by another: %q", answer), err)
	}
	return s.lockUnanswered(ctx, o)
}

// unanswered counts the requests without an answer of one cell: whether the server gets them in time is chance.
const unanswered = 3

// lockUnanswered has the holder wait for a server that does not answer, and looks for what stays when it answers again.
func (s *stage) lockUnanswered(ctx context.Context, o *outcome) (string, error) {
	var longest, stays time.Duration
	var text string
	tries, left := 0, 0
	for ; tries < unanswered && longest < patience/3; tries++ {
		s.service.holder.Blackhole(true, true)
		since := time.Now()
		answer, err := s.holder.do(ctx, patience, 0, "lock 1000")
		longest = max(longest, time.Since(since))
		s.service.holder.Blackhole(false, false)
		switch {
		case errors.Is(err, errNoAnswer):
			o.add("server hangs: no end in %s", seconds(patience))
			return o.String(), nil
		case err != nil:
			return "", err
		case answer == "held":
			o.add("server hangs: **held** after %s", seconds(longest))
			return o.String(), nil
		}
		text = answer
		since = time.Now()
		time.Sleep(2 * settle) // what was on its way has arrived, and has been undone by a library that does so
		answer, err = s.others.do(ctx, patience, 1, "try")
		if err != nil {
			return "", err
		}
		if answer != "held" {
			left++
			at, err := s.lock(ctx, s.others, 1)
			if err != nil {
				return "", err
			}
			stays = max(stays, at.Sub(since))
		}
		if answer, err := s.others.do(ctx, patience, 1, "unlock"); err != nil || strings.HasPrefix(answer, "error") {
			return "", errors.Join(fmt.Errorf("unlock by another: %q", answer), err)
		}
	}
	o.add("server hangs: %s, %s", seconds(longest), short(text))
	if left == 0 {
		o.add("nothing stays")
	} else {
		o.add("**a lock without holder stays** for %s (%d of %d times)", seconds(stays), left, tries)
	}
	return o.String(), nil
}

// share has Holdfast meet the lock of the library, and the library meet Holdfast's lock.
func share(ctx context.Context, s *stage) (string, error) {
	if strings.HasPrefix(s.peer.lib, "holdfast-") || s.kind == "kubernetes" { // Holdfast has no engine for that
		return "–", nil
	}
	if _, err := s.lock(ctx, s.holder, 0); err != nil {
		return "", err
	}
	name, o := key, &outcome{}
	url := s.peer.url(s.service.others.Addr())
	var err error
	switch s.kind {
	case "redis":
		if name, err = s.findKey(ctx); err == nil {
			o.add("`%s`", strings.ReplaceAll(name, key, "NAME"))
		}
	case "postgres":
		err = migrate(ctx, url)
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
		o.add("not shared: both hold NAME")
		return o.String(), lease.Release(ctx)
	}
	if !errors.Is(err, holdfast.ErrHeld) {
		return "", err
	}
	if answer, err := s.holder.do(ctx, patience, 0, "unlock"); err != nil || strings.HasPrefix(answer, "error") {
		return "", errors.Join(fmt.Errorf("unlock: %q", answer), err)
	}
	err = s.meetHoldfast(ctx, o, ours, name)
	return o.String(), err
}

// findKey returns the key of the lock that the holder has. Some libraries keep more, such as notes of their waiters.
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

// meetHoldfast adds what the library does behind a lock of Holdfast, and behind a key of another type than its own: a hash as
// Redisson has for plain strings, and the other way round.
func (s *stage) meetHoldfast(ctx context.Context, o *outcome, ours *holdfast.Client, name string) error {
	lease, err := ours.Acquire(ctx, name, &holdfast.AcquireOptions{TTL: 5 * ttl}) // renewed as long as it takes
	if err != nil {
		return err
	}
	answer, err := s.holder.do(ctx, patience, 0, "lock 1000")
	if err = errors.Join(err, lease.Release(ctx)); err != nil {
		return err
	}
	if answer == "held" {
		o.add("**both hold it**")
		return nil
	}
	o.add("excluded both ways")
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
	switch again, err := s.holder.do(ctx, patience, 0, "lock 1000"); {
	case errors.Is(err, errNoAnswer):
		o.add("key of another type: no end in %s", seconds(patience))
	case err != nil:
		return err
	case again == "held":
		o.add("key of another type: **held**")
	case again == answer:
		o.add("key of another type: the same")
	default:
		o.add("key of another type: %s", short(again))
	}
	return nil
}
