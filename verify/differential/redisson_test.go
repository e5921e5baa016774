package differential

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// The twin also describes these scripts, except that a renewal never takes a free lock, like a renewal without
// a token.
func TestRedissonScriptsMatchTwin(t *testing.T) {
	t.Parallel()
	server, err := connectFormat(t.Context(), redisson, redistest.Start(t, nil).Addr(), "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	keys := Keys{Lock: "differential", Fence: wire.RedissonFence("differential"), Queue: wire.QueueKey("differential")}
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{t: rt, server: server, keys: keys}
		w.runSteps(func(step int) {
			switch step {
			case 3:
				w.setCounter(counts)
			case 4:
				w.lockByThread()
			default:
				w.callRedisson()
			}
		})
	})
}

// lockByThread gives a free lock to a Java thread, or stores another type under its key.
func (w *world) lockByThread() {
	if w.state.Owner != "" {
		return
	}
	take := rapid.SampledFrom([][]string{
		{"HINCRBY", w.keys.Lock, redisson.toServer("e.1"), "1"},
		{"HSET", w.keys.Lock, "name", "x"},
		{"HSET", w.keys.Lock, "mode", "read", redisson.toServer("e.1"), "1"},
		{"SET", w.keys.Lock, "value"},
		{"RPUSH", w.keys.Lock, "x"},
	}).Draw(w.t, "in the lock's place")
	w.runCommands(take, []string{"PEXPIRE", w.keys.Lock, "8000"})
	w.readState()
	w.t.Logf("%q", take)
}

// callRedisson draws a call and compares its outcome.
func (w *world) callRedisson() {
	ids := []string{"a.1", "a.2", "b.1", "b.2", "c.1", "d.1"}
	owner := func(what string) string {
		if w.state.Owner != "" && rapid.Bool().Draw(w.t, what+" has the lock") {
			return w.state.Owner
		}
		return rapid.SampledFrom(ids).Draw(w.t, what)
	}
	c := Call{
		Script: rapid.SampledFrom([]string{
			"acquire", "acquire", "acquire", "adopt", "commit", "renew", "release", "release", "force", "inspect",
		}).Draw(w.t, "script"),
		Owner: owner("owner"),
		TTL:   rapid.SampledFrom(ttls).Draw(w.t, "ttl"),
		Short: rapid.Bool().Draw(w.t, "short"),
		java:  true,
	}
	if c.Script == "acquire" || c.Script == "adopt" {
		c.Clock = time.Now().UnixMicro() + rapid.SampledFrom(leads).Draw(w.t, "clock ahead")
	}
	switch c.Script {
	case "acquire", "release":
		c.Stamp = rapid.SampledFrom(stamps).Draw(w.t, "stamp")
		if c.Script == "release" && c.Stamp == 0 && rapid.IntRange(0, 3).Draw(w.t, "kept") == 0 {
			c.MinHold = rapid.SampledFrom(ttls).Draw(w.t, "MinHold")
		}
	case "adopt":
		c.From = owner("from")
	case "commit":
		c.Token = max(w.state.Fence+rapid.SampledFrom(offsets).Draw(w.t, "token from the counter"), 1)
	}
	if c.Script == "adopt" || c.Script == "force" {
		c.Noted = rapid.SampledFrom([]int64{0, 60_000}).Draw(w.t, "noted for")
	}
	if strings.ContainsAny(c.Owner+c.From, "(!") {
		return // no owner
	}
	w.compareCall(c)
}
