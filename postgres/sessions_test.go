package postgres_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/postgres"
)

var sessionsSeed = flag.Uint64("sessions-seed", 0, "seed of TestSessionSettingsDoNotChangeAnswers; 0: another each time")

// oddSettings holds settings that a database, a user or a URL may have for each session.
var oddSettings = strings.Join([]string{
	"search_path=pg_temp", "DateStyle=German", "IntervalStyle=sql_standard", "TimeZone=Asia/Kathmandu", "standard_conforming_strings=off",
	"bytea_output=escape", "extra_float_digits=-15", "plan_cache_mode=force_generic_plan", "transform_null_equals=on", "array_nulls=off",
	"check_function_bodies=off", "quote_all_identifiers=on", "default_transaction_deferrable=on", "row_security=off", "xmloption=document",
	"enable_indexscan=off", "enable_bitmapscan=off", "lock_timeout=9000", "statement_timeout=9000", "idle_in_transaction_session_timeout=9000",
}, " ")

// session is a group of clients with one kind of session, in a schema of their own.
type session struct {
	*rig
	clients []*postgres.Driver
	grants  map[string]driver.Grant        // by key: grant of the holder
	kept    map[string]bool                // by key: released, and kept until it expires
	line    map[string][]chan driver.Grant // by key: waiters in order
	tokens  map[string]int64               // by key: last token
	names   map[string]string              // by owner: short name, numbered in order of appearance
}

func newSession(t *testing.T, dsn string, opts postgres.Options) *session {
	s := &session{
		rig: newRig(t), grants: make(map[string]driver.Grant), kept: make(map[string]bool), line: make(map[string][]chan driver.Grant),
		tokens: make(map[string]int64), names: make(map[string]string),
	}
	opts.Schema = s.opts.Schema
	for range 2 {
		d, err := postgres.Open(t.Context(), dsn, &opts)
		s.NoError(err)
		t.Cleanup(func() { d.Close() })
		s.clients = append(s.clients, d)
	}
	return s
}

// ownerName returns a short name for an owner.
func (s *session) ownerName(owner string) string {
	owner, kept := strings.CutSuffix(owner, "!")
	if owner != "" && s.names[owner] == "" {
		s.names[owner] = fmt.Sprint("owner ", len(s.names)+1)
	}
	if kept {
		return s.names[owner] + ", kept"
	}
	return s.names[owner]
}

// describeError returns the outcome of a request as text.
func (s *session) describeError(err error) string {
	held, ok := errors.AsType[*driver.HeldError](err)
	switch {
	case ok:
		return fmt.Sprintf("held by %s (%s), %d wait", s.ownerName(held.Owner), held.Holder.Note, held.Waiters)
	case errors.Is(err, driver.ErrLost):
		return "lost"
	}
	return fmt.Sprint(err)
}

// noteGrant records a grant and describes it.
func (s *session) noteGrant(g driver.Grant) string {
	rises := g.Token > s.tokens[g.Key]
	s.tokens[g.Key], s.grants[g.Key] = g.Token, g
	delete(s.kept, g.Key)
	return fmt.Sprintf("granted to %s, the token rises: %v", s.ownerName(g.Owner), rises)
}

// notePassed records that the lock of key is free or was handed to its first waiter.
func (s *session) notePassed(key string) string {
	delete(s.grants, key)
	delete(s.kept, key)
	if len(s.line[key]) == 0 {
		return "free"
	}
	first := s.line[key][0]
	s.line[key] = s.line[key][1:]
	select {
	case g := <-first:
		return s.noteGrant(g)
	case <-s.WaitContext().Done():
		s.Fatal("the first waiter was not granted the lock")
		return ""
	}
}

// doStep makes request number step on key, by one of the clients, and returns its outcome.
func (s *session) doStep(step, by int, key string) string {
	d, ctx := s.clients[by], s.WaitContext()
	g, held := s.grants[key]
	if !held {
		g = driver.Grant{Key: key, Owner: "nobody", TTL: longTTL}
	}
	req := driver.Request{Key: key, TTL: longTTL, NoWait: true, Adoptable: true, Holder: driver.Holder{Note: "näch'st\\e \"" + key}}
	switch step {
	case 0, 1:
		got, err := d.Acquire(ctx, req)
		if err != nil {
			return s.describeError(err)
		}
		return s.noteGrant(got)
	case 2:
		if !held && !s.kept[key] {
			return "nobody to wait for"
		}
		next, waiting := make(chan driver.Grant, 1), len(s.line[key])
		req.NoWait = false
		go func() {
			if got, err := d.Acquire(s.WaitContext(), req); err == nil {
				next <- got
			}
		}()
		s.line[key] = append(s.line[key], next)
		s.Eventually("it waits", func() bool { return s.waiterCount(key) == waiting+1 })
		return "waits"
	case 3:
		r := d.Renew(ctx, []driver.Grant{g, {Key: key, Owner: "stranger", TTL: longTTL}})
		return fmt.Sprintf("%s with %d that wait; %s", s.describeError(r[0].Err), r[0].Waiters, s.describeError(r[1].Err))
	case 4:
		if err := d.Release(ctx, g, 0); err != nil || !held {
			return s.describeError(err)
		}
		return s.notePassed(key)
	case 5:
		if err := d.Release(ctx, g, longTTL); err != nil || !held {
			return s.describeError(err)
		}
		delete(s.grants, key)
		s.kept[key] = true
		return "kept"
	case 6:
		token := g.Token + int64(by) // any token of its block
		ok, err := d.Force(ctx, key, token, "by a test")
		if err != nil || !ok {
			return fmt.Sprint(ok, s.describeError(err))
		}
		return s.notePassed(key)
	case 7:
		ok, err := d.Force(ctx, key, g.Token-1, "by nobody")
		return fmt.Sprint(ok, s.describeError(err))
	case 8:
		got, err := d.Adopt(ctx, driver.Grant{Key: key, Owner: g.Owner, TTL: longTTL})
		if err != nil {
			return s.describeError(err)
		}
		return s.noteGrant(got)
	case 9:
		return s.describeError(d.Check(ctx, g))
	}
	var list []string
	err := d.List(ctx, "", func(st driver.Status) bool {
		list = append(list, fmt.Sprintf("%s: %v, %s (%s), %d wait, kept %v", st.Key, st.Held, s.ownerName(st.Owner), st.Holder.Note, st.Waiters, st.Kept))
		return true
	})
	slices.Sort(list)
	return fmt.Sprint(s.describeError(err), list)
}

// The same requests have the same outcome with any settings of a session, with or without a pooler, and whether
// a client listens or polls.
func TestSessionSettingsDoNotChangeAnswers(t *testing.T) {
	t.Parallel()
	seed := *sessionsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-sessions-seed=%d", seed)
	direct := server.DSN()
	rules := rand.New(rand.NewPCG(seed, 0))
	type request struct {
		step, by int
		key      string
	}
	requests := make([]request, 150)
	for i := range requests {
		requests[i] = request{rules.IntN(11), rules.IntN(2), []string{"a", "b'\\"}[rules.IntN(2)]}
	}
	kinds := map[string]*session{
		"polls":               newSession(t, direct, postgres.Options{NoListen: true}),
		"repeatable read":     newSession(t, direct+" default_transaction_isolation='repeatable read'", postgres.Options{}),
		"serializable":        newSession(t, direct+" default_transaction_isolation=serializable", postgres.Options{}),
		"odd settings":        newSession(t, direct+" "+oddSettings, postgres.Options{}),
		"a pooler":            newSession(t, startPooler(t, "transaction").DSN(), postgres.Options{}),
		"one shared session":  newSession(t, newRig(t).shareSession()+" pool_max_conns=2", postgres.Options{}),
		"one connection each": newSession(t, direct+" pool_max_conns=1", postgres.Options{}),
	}
	plain := newSession(t, direct, postgres.Options{})
	var before []string
	for i, q := range requests {
		want := plain.doStep(q.step, q.by, q.key)
		before = append(before, fmt.Sprintf("%d: request %d by client %d on %q: %s", i, q.step, q.by, q.key, want))
		for kind, s := range kinds {
			if got := s.doStep(q.step, q.by, q.key); got != want {
				t.Fatalf("%s: %s\nwant the last answer of a plain session\n%s", kind, got, strings.Join(before, "\n"))
			}
		}
	}
}
