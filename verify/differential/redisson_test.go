package differential

import (
	"fmt"
	"strconv"
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
	queue := wire.QueueKey("differential")
	keys := Keys{Lock: "differential", Fence: wire.RedissonFence("differential"), Queue: queue}
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{t: rt, server: server, keys: keys}
		w.runCommands([]string{"DEL", keys.Lock, keys.Fence, keys.Queue})
		if _, err := server.Wakes(); err != nil { // drops the wake-ups of a failed sequence
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 19).Draw(rt, "step") {
			case 0, 1:
				w.passTime()
			case 2:
				w.dropKeys()
			case 3:
				n := rapid.SampledFrom(counts).Draw(rt, "counter")
				w.runCommands([]string{"SET", keys.Fence, strconv.FormatInt(n, 10)})
				w.readState()
			case 4:
				w.lockByThread()
			default:
				w.callRedisson()
			}
		}
		got, err := server.Wakes()
		if err != nil {
			rt.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(w.wakes) {
			rt.Fatalf("wake-ups %v, want %v", got, w.wakes)
		}
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
	before := w.state
	o, err := w.server.Run(c, w.keys)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Logf("%+v: %v\n\tfrom %s\n\tto   %s", c, o.Reply, Show(before, o.Before), Show(o.After, o.Before))
	messages, difference := Compare(c, before, o, hears)
	if difference != "" {
		w.t.Fatalf("%s differs: %s", c.Script, difference)
	}
	for _, message := range messages {
		w.wakes = append(w.wakes, [2]string{wire.Wake + ownerClient(message), message})
	}
	w.state = o.After
}
