package sqllock_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock"
)

// sessions lists settings of sessions that programs may have, some of them by mistake.
var sessions = map[string]map[string]string{
	"MariaDB": {
		"strict": "&autocommit=0&tx_isolation=%27SERIALIZABLE%27&time_zone=%27%2B05:30%27" +
			"&sql_mode=%27ANSI,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH%27",
		"dirty reads": "&tx_isolation=%27READ-UNCOMMITTED%27&clientFoundRows=true&parseTime=true&loc=Local&sql_mode=%27%27",
		"oracle":      "&sql_mode=%27ORACLE%27&tx_isolation=%27READ-COMMITTED%27",
		"other":       "&sql_mode=%27MSSQL,TRADITIONAL,NO_ZERO_DATE%27&time_zone=%27-11:00%27&innodb_snapshot_isolation=1&autocommit=0&sql_safe_updates=1",
	},
	"MySQL": {
		"strict": "&autocommit=0&transaction_isolation=%27SERIALIZABLE%27&time_zone=%27%2B05:30%27" +
			"&sql_mode=%27ANSI,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH%27",
		"dirty reads": "&transaction_isolation=%27READ-UNCOMMITTED%27&clientFoundRows=true&parseTime=true&loc=Local&sql_mode=%27%27",
		"other": "&sql_mode=%27TRADITIONAL,HIGH_NOT_PRECEDENCE,IGNORE_SPACE%27&time_zone=%27-11:00%27" +
			"&transaction_isolation=%27READ-COMMITTED%27&sql_require_primary_key=1",
	},
}

// unusualNames are distinct names, in this order.
var unusualNames = []string{"", "K", "a b", "a'b", `a\b`, `a"b`, "a%b", "a;--", "k", "k ", "k\t", "ß", "日本"}

// The conformance suite runs with the server's own settings. Here each statement must do the same with other
// settings.
func TestSessionSettingsDoNotChangeAnswers(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		want := r.recordAnswers()
		for name, settings := range sessions[r.name] {
			r.TB.(*testing.T).Run(name, func(t *testing.T) {
				t.Parallel()
				other := newRig(t, r.database)
				other.settings = settings
				if got := other.recordAnswers(); got != want {
					t.Errorf("the answers are\n%s\nwant the same as in other sessions\n%s", got, want)
				}
			})
		}
	})
}

// recordAnswers records the answers of r's drivers to each of their statements, with numbers for owners and
// without times.
func (r *rig) recordAnswers() string {
	r.Helper()
	var text strings.Builder
	d, other := r.newDriver(), r.newDriver()
	names := make(map[string]string)
	say := func(what string, err error, more ...any) {
		if held, ok := errors.AsType[*driver.HeldError](err); ok {
			err = fmt.Errorf("held by %+v, %d wait, kept %v, for long %v", held.Holder, held.Waiters, held.Kept, held.Remaining > long/2)
		}
		line := fmt.Sprintln(append([]any{what, err}, more...)...)
		for owner, name := range names {
			line = strings.ReplaceAll(line, owner, name)
		}
		text.WriteString(line)
	}
	take := func(by *sqllock.Driver, key string) driver.Grant {
		g, err := by.Acquire(r.WaitContext(), driver.Request{
			Key: key, TTL: long, Adoptable: true, NoWait: true, Holder: driver.Holder{Host: `h\'"` + "ß", Note: "a\nb"},
		})
		if err == nil {
			names[g.Owner] = fmt.Sprint("owner", len(names))
		}
		say("acquire "+key, err, g.Owner, g.TTL)
		return g
	}
	look := func(key string) {
		st, err := other.Inspect(r.WaitContext(), key)
		say("inspect", err, st.Held, st.Owner, st.Kept, st.Waiters, st.Holder, st.Remaining > long/2)
	}
	var all []driver.Grant
	for _, name := range unusualNames[1:] {
		g := take(d, name)
		look(name)
		take(other, name)
		all = append(all, g)
	}
	for i, out := range d.Renew(r.WaitContext(), append(all, driver.Grant{Key: "k", Owner: "nobody", TTL: long, Token: 7})) {
		say(fmt.Sprint("renew ", i), out.Err, out.Waiters, out.TrustedUntil.After(time.Now()))
	}
	listed := make(map[string]bool)
	for _, prefix := range []string{"", "a", "k", "日"} {
		say("list "+prefix, other.List(r.WaitContext(), prefix, func(st driver.Status) bool {
			listed[st.Key] = true
			say("  "+st.Key, nil, st.Owner)
			return true
		}))
	}
	if found := slices.Sorted(maps.Keys(listed)); !slices.Equal(found, slices.Sorted(slices.Values(unusualNames[1:]))) {
		r.Errorf("List() has %q", found)
	}
	last := all[len(all)-1]
	got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(other, last.Key, long) })
	r.Eventually("it waits", func() bool { return r.waiterCount() == 1 && r.countRows("SELECT MAX(places) FROM holdfast_lock") == 1 })
	waiting, err := d.Queue(r.WaitContext(), last.Key, 9)
	say("queue", err, len(waiting))
	look(last.Key)
	for i, out := range d.Renew(r.WaitContext(), all[len(all)-2:]) {
		say(fmt.Sprint("renew ", i), out.Err, out.Waiters)
	}
	say("release", d.Release(r.WaitContext(), last, 0))
	next := <-got
	names[next.Owner] = "waiter"
	say("handed over", nil, next.Owner, next.Token > last.Token)
	look(last.Key)
	say("check", other.Check(r.WaitContext(), next))
	say("check of what was", d.Check(r.WaitContext(), last))
	say("release and keep", other.Release(r.WaitContext(), next, long))
	look(last.Key)
	take(d, last.Key)
	forced, err := other.Force(r.WaitContext(), last.Key, 0, "why")
	say("force", err, forced)
	own, err := other.Adopt(r.WaitContext(), all[0])
	r.NoError(err)
	names[own.Owner] = "heir"
	say("adopt", err, own.Owner, own.Token == all[0].Token)
	say("renew of what was adopted", d.Renew(r.WaitContext(), all[:1])[0].Err)
	say("release", other.Release(r.WaitContext(), own, 0))
	for _, g := range all[1 : len(all)-1] {
		say("release", d.Release(r.WaitContext(), g, 0))
	}
	left, err := r.leftoverRows()
	say("left", err, left)
	for _, f := range d.Diagnose(r.WaitContext(), 0) {
		if f.Check != "durability" && f.Check != "round-trip" && f.Check != "role" { // these findings mention that autocommit is off
			say("doctor "+f.Check, nil, f.Verdict)
		}
	}
	return text.String()
}
