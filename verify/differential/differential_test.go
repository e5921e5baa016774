package differential

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// sequencesVariable is the environment variable with the number of random sequences; -rapid.checks overrides
// it.
const sequencesVariable = "SEQUENCES"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.checks" })
	if !chosen {
		n := os.Getenv(sequencesVariable)
		if n == "" {
			n = "1000"
		}
		if err := flag.Set("rapid.checks", n); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", sequencesVariable, err)
			os.Exit(2)
		}
	}
	stop := tempo.Start()
	code := m.Run()
	stop()
	os.Exit(code)
}

// Clients a and b receive their wake-ups, c and d do not.
var (
	owners  = []string{"a.1", "a.2", "b.1", "b.a", "c.1", "d.1"}
	foreign = []string{"Zm9yZWlnbg==", "no-dot", "c.9", "(hash)", "(empty)", "e.1 0", "e.1 -1", "e.1 9007199254740992", "e.1 9223372036854775807"}
	hears   = func(owner string) bool { return owner[0] == 'a' || owner[0] == 'b' }
	ttls    = []int64{10, 11, 500, 1000, 1001, 10_000, 60_000, 75_000, 75_001, 300_000, 3_600_000}
	stamps  = []int64{0, 0, 1, 2, 3, 1 << 52, 1<<52 + 1, 1_763_647_000_000_001}
	leads   = []int64{0, 0, 1, -500_000, 500_000, -3_000_000, 3_000_000, -59_000_000, 61_000_000, -3_600_000_000, 3_600_000_000}
	// Tokens around the end of a block, relative to the counter.
	offsets = []int64{-96, -64, -63, -33, -32, -31, -31, -31, -30, -1, 0, 1, 2, 31, 32, 33, 64}
	passes  = []int64{1, 9, 10, 11, 400, 999, 1000, 1001, 10_000, 15_000, 29_999, 30_001, 59_999, 60_001, 149_999, 150_000, 150_001, 599_999, 600_001, 4_000_000}
	markers = []string{"", "", "n=3 run=r1", "n=3 run=r1", "n=3 run=r2"}
	counts  = []int64{1, 32, 1<<52 - 40, 1 << 52, 1<<53 - 64*64, 1<<53 - 64*64 + 1, 1_763_647_000_000_031}
	// Counters that another program has changed, or that are at their end.
	oddCounts = []int64{-1 << 62, -40, -32, -1, 0, 1<<53 - 65, 1<<53 - 33, 1<<53 - 32, 1<<53 - 1, 1 << 53, 1<<60 + 7}
)

// world is one lock on the server, under test by one sequence.
type world struct {
	t      *rapid.T
	server *Server
	keys   Keys
	state  quorum.Lock
	set    string      // the node's marker
	wakes  [][2]string // expected wake-ups
}

func (w *world) runCommands(cmds ...[]string) []any {
	replies, err := w.server.Do(cmds...)
	if err != nil {
		w.t.Fatal(err)
	}
	return replies
}

func (w *world) readState() {
	l, err := w.server.State(w.keys)
	if err != nil {
		w.t.Fatal(err)
	}
	w.state = l
}

// runCall draws a call and compares its outcome.
func (w *world) runCall() {
	c := Call{
		Script: rapid.SampledFrom([]string{
			"acquire", "acquire", "acquire", "adopt", "commit", "renew", "renew", "release", "release", "force", "inspect",
		}).Draw(w.t, "script"),
		Owner: rapid.SampledFrom(owners).Draw(w.t, "owner"),
		TTL:   rapid.SampledFrom(ttls).Draw(w.t, "ttl"),
	}
	if w.state.Owner != "" && !strings.Contains(w.state.Owner, " ") && rapid.Bool().Draw(w.t, "by its holder") {
		c.Owner = w.state.Owner
	}
	if c.Script == "acquire" || c.Script == "adopt" {
		c.Clock = time.Now().UnixMicro() + rapid.SampledFrom(leads).Draw(w.t, "clock ahead")
	}
	switch c.Script {
	case "acquire":
		c.Stamp = rapid.SampledFrom(stamps).Draw(w.t, "stamp")
	case "release":
		c.Stamp = rapid.SampledFrom(stamps).Draw(w.t, "stamp")
		if rapid.IntRange(0, 4).Draw(w.t, "to nobody") == 0 {
			c.TTL = 0
		}
		if c.Stamp == 0 && rapid.IntRange(0, 3).Draw(w.t, "kept") == 0 {
			c.MinHold = rapid.SampledFrom(ttls).Draw(w.t, "MinHold")
		}
	case "adopt":
		c.From = rapid.SampledFrom(owners).Draw(w.t, "from")
		if w.state.Owner != "" && !strings.Contains(w.state.Owner, " ") && rapid.Bool().Draw(w.t, "from its holder") {
			c.From = w.state.Owner
		}
	case "commit", "renew":
		c.Token = w.state.Fence + rapid.SampledFrom(offsets).Draw(w.t, "token from the counter")
		c.Token = min(max(c.Token, 1), quorum.FirstOfBlock(quorum.MaxToken))
		c.Restore = c.Script == "renew" && rapid.Bool().Draw(w.t, "anew")
	}
	if c.Script == "adopt" || c.Script == "force" {
		c.Noted = rapid.SampledFrom([]int64{0, 1, 20, 60_000}).Draw(w.t, "noted for")
	}
	if slices.Contains([]string{"acquire", "adopt", "release", "force"}, c.Script) && rapid.IntRange(0, 3).Draw(w.t, "with a least token") == 0 {
		c.Least = max(w.state.Fence+rapid.SampledFrom(offsets).Draw(w.t, "least token from the counter"), 0)
	}
	c.Marker, c.Set = rapid.SampledFrom(markers).Draw(w.t, "marker"), w.set
	c.Short = rapid.Bool().Draw(w.t, "short")
	w.compareCall(c)
}

// compareCall executes a call on the server and by the twin.
func (w *world) compareCall(c Call) {
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

func ownerClient(owner string) string { return owner[:1] }

// passTime simulates the passing of time: it makes keys expire sooner.
func (w *world) passTime() {
	const shiftLua = `
		for _, key in ipairs(KEYS) do
		  local at = redis.call('PEXPIRETIME', key)
		  if at > 0 then redis.call('PEXPIREAT', key, at - ARGV[1]) end
		end
		local all = redis.call('ZRANGE', KEYS[3], 0, -1)
		for _, member in ipairs(all) do
		  if string.find(member, '^[!~]') then redis.call('ZINCRBY', KEYS[3], ARGV[1], member) end
		end`
	d := rapid.SampledFrom(passes).Draw(w.t, "ms pass")
	w.runCommands([]string{"EVAL", shiftLua, "3", w.keys.Lock, w.keys.Fence, w.keys.Queue, strconv.FormatInt(d, 10)})
	w.readState()
	w.t.Logf("%d ms pass", d)
}

// dropKeys deletes keys early.
func (w *world) dropKeys() {
	key := rapid.SampledFrom([]string{w.keys.Lock, w.keys.Fence, w.keys.Queue}).Draw(w.t, "dropped")
	w.runCommands([]string{"DEL", key})
	w.readState()
	w.t.Logf("%s is gone", key)
}

// setCounter sets the counter to one of the values.
func (w *world) setCounter(values []int64) {
	n := rapid.SampledFrom(values).Draw(w.t, "counter")
	w.runCommands([]string{"SET", w.keys.Fence, strconv.FormatInt(n, 10)})
	w.readState()
	w.t.Logf("counter = %d", n)
}

// lockByOther makes another library take the lock.
func (w *world) lockByOther() {
	value := rapid.SampledFrom(foreign).Draw(w.t, "value")
	w.runCommands(Put(w.keys, value, 8000))
	w.readState()
	w.t.Logf("%q tries to acquire the lock", value)
}

// setMarker changes the marker of the node.
func (w *world) setMarker() {
	w.set = rapid.SampledFrom(markers).Draw(w.t, "the node's marker")
	if w.set == "" {
		w.runCommands([]string{"DEL", wire.Set})
	} else {
		w.runCommands([]string{"SET", wire.Set, w.set})
	}
	w.t.Logf("marker = %q", w.set)
}

func TestScriptsMatchTwin(t *testing.T) {
	t.Parallel()
	server := connectServer(t, "a", "b")
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{t: rt, server: server, keys: KeysOf("lock:differential")}
		w.setMarker()
		w.runSteps(func(step int) {
			switch step {
			case 3:
				w.setCounter(slices.Concat(counts, oddCounts))
			case 4:
				w.lockByOther()
			case 5:
				w.setMarker()
			default:
				w.runCall()
			}
		})
	})
}

// runSteps goes through random steps from the state without keys, and compares the wake-ups. Time passes and keys are
// deleted in steps 0 to 2 of 20; other has the others.
func (w *world) runSteps(other func(step int)) {
	w.runCommands([]string{"DEL", w.keys.Lock, w.keys.Fence, w.keys.Queue})
	if _, err := w.server.Wakes(); err != nil { // drops the wake-ups of a failed sequence
		w.t.Fatal(err)
	}
	for range rapid.IntRange(1, 30).Draw(w.t, "steps") {
		switch step := rapid.IntRange(0, 19).Draw(w.t, "step"); step {
		case 0, 1:
			w.passTime()
		case 2:
			w.dropKeys()
		default:
			other(step)
		}
	}
	got, err := w.server.Wakes()
	if err != nil {
		w.t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(w.wakes) {
		w.t.Fatalf("wake-ups %v, want %v", got, w.wakes)
	}
}

func connectServer(t *testing.T, listening ...string) *Server {
	t.Helper()
	server, err := Connect(t.Context(), redistest.Start(t, nil).Addr(), listening...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server
}
