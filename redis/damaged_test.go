package redis_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// keyDamage is a damage of a lock's keys by another program, with the expected answer of each call.
type keyDamage struct {
	name  string
	cmds  func(key, fence, queue string) [][]string
	owner string // as a listing shows it; "": the lock is free
	token int64
	leak  []string // what Leaks reports; nil: nothing
	show  []string // words in the node's error in a listing, in addition to the owner
	take  []string // words in the error of an acquire; nil: the lock is held or can be acquired
	names string   // the key that each error names: "fence" or "queue"
}

// holderID is an owner id of a client that is not part of the test.
const holderID = "AAAAAAAAAAAAAAAAAAAAAAAAAA.zzz"

func allDamages() []keyDamage {
	value := func(text string) func(key, fence, queue string) [][]string {
		return func(key, _, _ string) [][]string { return [][]string{{"SET", key, text}} }
	}
	counter := func(text string) func(key, fence, queue string) [][]string {
		return func(_, fence, _ string) [][]string { return [][]string{{"SET", fence, text}} }
	}
	const spoiled = "whose number is no token"
	return []keyDamage{
		{name: "the largest token", cmds: value(holderID + " 9223372036854775807"), owner: holderID + " 9223372036854775807", leak: []string{spoiled}},
		{name: "a token above 2^53", cmds: value(holderID + " 9007199254740993"), owner: holderID + " 9007199254740993", leak: []string{spoiled}},
		{
			name: "a token of 40 digits", cmds: value(holderID + " " + strings.Repeat("1", 40)), owner: holderID + " " + strings.Repeat("1", 40),
			leak: []string{spoiled},
		},
		{name: "the token 0", cmds: value(holderID + " 0"), owner: holderID + " 0", leak: []string{spoiled}},
		{name: "a negative token", cmds: value(holderID + " -5"), owner: holderID + " -5", leak: []string{spoiled}},
		{name: "a text for a token", cmds: value(holderID + " x"), owner: holderID + " x", leak: []string{spoiled}},
		{name: "no token", cmds: value(holderID), owner: holderID, leak: []string{"force-release"}},
		{
			name: "a number that is no time", owner: "AAAAAAAAAAAAAAAAAAAAAAAAAA.zzzzzzzzzzzz", token: 500,
			cmds: value("AAAAAAAAAAAAAAAAAAAAAAAAAA.zzzzzzzzzzzz 500"), leak: []string{"force-release"},
		},
		{
			name: "a TTL beyond all durations", owner: holderID, token: 500,
			cmds: func(key, _, _ string) [][]string {
				return [][]string{{"SET", key, holderID + " 500", "PX", "8000000000000000000"}}
			},
		},
		{
			name: "a queue that is a string", owner: holderID, token: 500, names: "queue", leak: []string{"force-release", "queue"},
			cmds: func(key, _, queue string) [][]string {
				return [][]string{{"SET", key, holderID + " 500"}, {"SET", queue, "x"}}
			},
			show: []string{"WRONGTYPE"}, take: []string{"WRONGTYPE"},
		},
		{
			name: "a note without an end", owner: holderID, token: 500,
			cmds: func(key, _, queue string) [][]string {
				return [][]string{{"SET", key, holderID + " 500", "PX", "60000"}, {"ZADD", queue, "-inf", "~" + holderID}}
			},
		},
		{
			name: "places of other shapes", owner: holderID, token: 500,
			cmds: func(key, _, queue string) [][]string {
				return [][]string{
					{"SET", key, holderID + " 500", "PX", "60000"},
					{"ZADD", queue, "5", "~" + holderID, "6", "odd", "7", "", "-8", "!odd", "-3", "x", "inf", "y.1", "-inf", "!y.1"},
				}
			},
		},
		{name: "the largest counter", cmds: counter("9223372036854775800"), take: []string{"overflow", "DEL"}, names: "fence"},
		{name: "a counter at its end", cmds: counter(strconv.Itoa(quorum.MaxToken - 30)), take: []string{"no tokens are left", "DEL"}, names: "fence"},
		{name: "a counter above 2^53", cmds: counter("1152921504606846976"), take: []string{"no tokens are left", "DEL"}, names: "fence"},
		{name: "a text for a counter", cmds: counter("abc"), take: []string{"not an integer", "DEL"}, names: "fence"},
		{name: "a fraction for a counter", cmds: counter("1.5"), take: []string{"not an integer", "DEL"}, names: "fence"},
		{name: "a counter below 1", cmds: counter("-100")},
		{
			name: "a counter that is a list", names: "fence", take: []string{"WRONGTYPE", "DEL"},
			cmds: func(_, fence, _ string) [][]string { return [][]string{{"DEL", fence}, {"RPUSH", fence, "abc"}} },
		},
	}
}

// The test tries each call on each key of a lock that another program has damaged.
func TestDamagedKeysAreNamedAndForced(t *testing.T) {
	r := startRig(t, 1)
	for i, c := range allDamages() {
		d := r.openDriver(r.nodes(), nil)
		lock := &damagedLock{r, c, d, "damaged-" + strconv.Itoa(i)}
		lock.checkListings()
		lock.checkLeaks()
		lock.checkAcquire()
		lock.checkForce()
		lock.checkHolder()
		d.Close()
	}
}

// damagedLock is a lock with a damage, on the only server of a rig.
type damagedLock struct {
	*rig
	keyDamage
	d   *redis.Driver
	key string
}

func (l *damagedLock) keys() (key, fence, queue string) {
	key = "lock:" + l.key
	return key, wire.ServerFence(key), wire.QueueKey(key)
}

// plantKeys creates the damaged keys, without other keys.
func (l *damagedLock) plantKeys() {
	l.Helper()
	l.do(0, "FLUSHDB")
	for _, cmd := range l.cmds(l.keys()) {
		l.do(0, cmd...)
	}
}

// checkError checks that err contains the words and the damaged key.
func (l *damagedLock) checkError(verb string, err error, words []string) {
	l.Helper()
	_, fence, queue := l.keys()
	words = append([]string{map[string]string{"fence": fence, "queue": queue}[l.names]}, words...)
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			l.Errorf("%s: %s = %v, want an error that mentions %q", l.keyDamage.name, verb, err, words)
			return
		}
	}
}

func (l *damagedLock) checkListings() {
	l.Helper()
	l.plantKeys()
	seen := driver.Status{}
	if err := l.d.List(l.boundedContext(), "", func(st driver.Status) bool { seen = st; return true }); err != nil {
		l.Errorf("%s: List = %v", l.keyDamage.name, err)
	}
	st, err := l.d.Inspect(l.boundedContext(), l.key)
	if err != nil || st.Owner != l.owner || st.Token != l.token || st.Remaining < -time.Second {
		l.Errorf("%s: Inspect = %q, token %d, %v left, %v", l.keyDamage.name, st.Owner, st.Token, st.Remaining, err)
	}
	if seen.Owner != l.owner {
		l.Errorf("%s: List shows %q", l.keyDamage.name, seen.Owner)
	}
	if _, err := json.Marshal(st.Since); err != nil {
		l.Error(l.keyDamage.name, err)
	}
	if l.show != nil {
		l.checkError("Inspect", st.Nodes[0].Err, l.show)
	} else if st.Nodes[0].Err != nil {
		l.Errorf("%s: Inspect shows %v", l.keyDamage.name, st.Nodes[0].Err)
	}
}

func (l *damagedLock) checkLeaks() {
	l.Helper()
	l.plantKeys()
	var told strings.Builder
	for leak, err := range l.d.Leaks(l.boundedContext(), nil) {
		if err != nil {
			l.Errorf("%s: Leaks = %v", l.keyDamage.name, err)
		}
		told.WriteString(leak.Text)
	}
	if (told.String() != "") != (l.leak != nil) {
		l.Errorf("%s: Leaks told %q", l.keyDamage.name, told.String())
	}
	for _, word := range l.leak {
		if !strings.Contains(told.String(), word) {
			l.Errorf("%s: Leaks reported %q, without %q", l.keyDamage.name, told.String(), word)
		}
	}
}

func (l *damagedLock) checkAcquire() {
	l.Helper()
	l.plantKeys()
	g, err := l.d.Acquire(l.boundedContext(), driver.Request{Key: l.key, TTL: longTTL, NoWait: true})
	switch {
	case l.take != nil:
		l.checkError("Acquire", err, l.take)
	case l.owner != "":
		if !errors.Is(err, driver.ErrHeld) {
			l.Errorf("%s: Acquire = %v, want held", l.keyDamage.name, err)
		}
	case err != nil || g.Token <= 0 || g.Token > quorum.MaxToken:
		l.Errorf("%s: Acquire = %d, %v", l.keyDamage.name, g.Token, err)
	}
}

func (l *damagedLock) checkForce() {
	l.Helper()
	l.plantKeys()
	key, _, _ := l.keys()
	took, err := l.d.Force(l.boundedContext(), l.key, l.token, "it is damaged")
	if took != (l.owner != "") || err != nil || l.do(0, "EXISTS", key) != int64(0) {
		l.Errorf("%s: Force = %v, %v, and EXISTS %v", l.keyDamage.name, took, err, l.do(0, "EXISTS", key))
	}
}

// checkHolder damages the other keys of a held lock.
func (l *damagedLock) checkHolder() {
	l.Helper()
	l.do(0, "FLUSHDB")
	key, _, queue := l.keys()
	g, err := l.d.Acquire(l.boundedContext(), driver.Request{Key: l.key, TTL: longTTL})
	if err != nil {
		l.Fatal(l.keyDamage.name, err)
	}
	for _, cmd := range l.cmds(l.keys()) {
		if cmd[1] != key {
			l.do(0, cmd...)
		}
	}
	if renewal := l.d.Renew(l.boundedContext(), []driver.Grant{g})[0]; renewal.Err != nil {
		l.Errorf("%s: Renew = %v", l.keyDamage.name, renewal.Err)
	}
	ctx, cancel := context.WithCancel(l.boundedContext())
	defer cancel()
	if err := l.d.Release(ctx, g, 0); l.names == "queue" {
		l.checkError("Release", err, []string{"WRONGTYPE"})
		l.do(0, "DEL", queue)
	} else if err != nil || l.do(0, "EXISTS", key) != int64(0) {
		l.Errorf("%s: Release = %v, and EXISTS %v", l.keyDamage.name, err, l.do(0, "EXISTS", key))
	}
}

// Above the maximum Lua rounds numbers, so that two grants would get the same token.
func TestTokensRiseUntilCounterIsExhausted(t *testing.T) {
	r := startRig(t, 1)
	d := r.openDriver(r.nodes(), nil)
	t.Cleanup(func() { d.Close() })
	r.do(0, "SET", wire.ServerFence("lock:k"), strconv.Itoa(quorum.MaxToken-100))
	last := int64(0)
	for range 10 {
		g, err := d.Acquire(r.boundedContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true})
		if err != nil {
			checkMentions(t, err, wire.ServerFence("lock:k"), "DEL")
			break
		}
		if g.Token < last+quorum.Block || quorum.LastOfBlock(g.Token) > quorum.MaxToken {
			t.Errorf("token %d after %d", g.Token, last)
		}
		last = g.Token
		if err := d.Release(r.boundedContext(), g, 0); err != nil {
			t.Error(err)
		}
	}
	if last == 0 {
		t.Error("no grant below the maximum")
	}
	r.do(0, "DEL", wire.ServerFence("lock:k"))
	if _, err := d.Acquire(r.boundedContext(), driver.Request{Key: "k", TTL: longTTL}); err != nil { // the first answer may be from before the floor
		t.Errorf("after DEL: %v", err)
	}
}

// The other leaks are yielded first, and then the key that could not be read.
func TestUnreadableKeyDoesNotHideOtherLeaks(t *testing.T) {
	r := startRig(t, 1)
	r.plantLeaks()
	r.do(0, "SET", "lock:secret", "value")
	r.do(0, "ACL", "SETUSER", "looker", "on", "nopass", "~*", "&*", "+@all", "-get")
	r.do(0, "ACL", "SETUSER", "looker", "resetkeys", "~lock:[a-r]*", "~lock:[t-z]*", "~holdfast:*", "+@all")
	d := newDriver(t, r.nodes(), &redis.Options{ReadOnly: true, Username: "looker", Password: "x", Timeout: busyTimeout()})
	found := 0
	var told error
	for _, err := range d.Leaks(r.boundedContext(), nil) {
		if told = err; err == nil {
			found++
		}
	}
	if found != len(plantedLeaks) {
		t.Errorf("%d leaks, want %d", found, len(plantedLeaks))
	}
	checkMentions(t, told, "lock:secret")
}

// The counter belongs to the lock, and contains the token of its holder.
func TestDamagedRedissonKeysAreForced(t *testing.T) {
	r := startRig(t, 1)
	const owner = "0b7f6c52-9f0e-8a59-8e35-6f1f6a1c2d3e:42"
	fence, queue := wire.RedissonFence("k"), wire.QueueKey("k")
	d := r.openDriver(r.nodes(), redissonOptions)
	t.Cleanup(func() { d.Close() })
	for _, cmd := range [][]string{
		{"SET", fence, "abc"},
		{"SET", fence, "9223372036854775800"},
		{"SET", fence, "1152921504606846976"},
		{"SET", fence, "-5"},
		{"SET", fence, "1.5"},
		{"RPUSH", fence, "x"},
		{"SET", queue, "x"},
	} {
		r.do(0, "FLUSHDB")
		r.do(0, "HSET", "k", owner, "1")
		r.do(0, cmd...)
		if err := d.List(r.boundedContext(), "", func(st driver.Status) bool {
			if st.Owner != owner || st.Token != 0 {
				t.Errorf("%q: List shows %q with token %d", cmd, st.Owner, st.Token)
			}
			return true
		}); err != nil {
			t.Errorf("%q: List = %v", cmd, err)
		}
		if took, err := d.Force(r.boundedContext(), "k", 0, "it is damaged"); !took || err != nil || r.do(0, "EXISTS", "k") != int64(0) {
			t.Errorf("%q: Force = %v, %v", cmd, took, err)
		}
		g, err := d.Acquire(r.boundedContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true})
		if key := cmd[1]; key == fence && cmd[2] != "-5" {
			checkMentions(t, err, fence, "DEL")
		} else if err != nil || g.Token <= 0 {
			t.Errorf("%q: Acquire = %d, %v", cmd, g.Token, err)
		}
	}
}

func TestDamagedMarkerIsNamed(t *testing.T) {
	r := startRig(t, 1)
	r.openDriver(r.nodes(), nil).Close()
	good, _ := r.do(0, "GET", wire.Set).(string)
	marker, _, _ := strings.Cut(good, " floor=")
	for _, cmds := range [][][]string{
		{{"SET", wire.Set, marker + " floor=9223372036854775807"}},
		{{"SET", wire.Set, marker + " floor=-5"}},
		{{"DEL", wire.Set}, {"HSET", wire.Set, "a", "b"}},
	} {
		for _, cmd := range cmds {
			r.do(0, cmd...)
		}
		d, err := r.open(r.nodes(), nil)
		if err == nil {
			d.Close()
		}
		if checkMentions(t, err, wire.Set+":", "DEL"); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%v, want an ErrConfig", err)
		}
	}
	r.do(0, "DEL", wire.Set)
	r.openDriver(r.nodes(), nil).Close()
}
