package differential

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// vectorFile is a file of vectors with its format.
type vectorFile struct {
	file    string
	make    func() Vectors
	dialect dialect
	keys    Keys
	ears    []string // channels beside the clients' own
}

var vectorFiles = []vectorFile{
	{"testdata/vectors.json", MakeVectors, plainDialect, KeysOf("lock:vector"), nil},
	{
		"testdata/vectors-redisson.json", RedissonVectors, plainRedisson,
		Keys{Lock: "vector", Fence: wire.RedissonFence("vector"), Queue: KeysOf("vector").Queue},
		[]string{redissonChannel},
	},
}

func TestVectorsMatchTwin(t *testing.T) {
	t.Parallel()
	for _, b := range vectorFiles {
		got, err := os.ReadFile(b.file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := b.make().Encode()
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s differs from the scripts and their twin; run go generate ./differential in verify", b.file)
		}
	}
}

// The test reads the file as an implementer would, without the twin.
func TestVectorsMatchServer(t *testing.T) {
	t.Parallel()
	for _, b := range vectorFiles {
		b.checkAll(t)
	}
}

func (b vectorFile) checkAll(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	var v Vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	addr := redistest.Start(t, nil).Addr()
	for _, c := range v.Cases {
		t.Run(c.Name, func(t *testing.T) {
			server, err := connectFormat(t.Context(), b.dialect, addr, c.Listening...)
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			if err := server.subscribe(b.ears...); err != nil {
				t.Fatal(err)
			}
			c.checkCase(t, server, b.keys, v.Scripts[c.Script])
		})
	}
}

// clocks resolves "now" and "node": readings before and after the script bound the node's clock.
type clocks struct{ now, before, after int64 }

// matches reports whether text stands for this number on the server.
func (c clocks) matches(text string, server int64) bool {
	if rest, ok := strings.CutPrefix(text, "node"); ok {
		at := server - parseOffset(rest)
		return c.before <= at && at <= c.after
	}
	return c.resolve(text) == strconv.FormatInt(server, 10)
}

// resolve returns the number for a symbolic text, and any other text unchanged.
func (c clocks) resolve(text string) string {
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		return strconv.FormatInt(c.now+parseOffset(rest), 10)
	}
	return text
}

func parseOffset(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // "" is 0
	return n
}

func (c Case) checkCase(t *testing.T, server *Server, keys Keys, script ScriptText) {
	now := c.putState(t, server, keys)
	names := []string{keys.Lock, keys.Fence, keys.Queue}
	if c.Marker != "" {
		names, c.Args = append(names, wire.Set), append(c.Args, c.Marker)
	}
	c.checkOutcome(t, server, keys, now, c.runScript(t, server, &now, script, names))
}

// putState writes the given state to the server.
func (c Case) putState(t *testing.T, server *Server, keys Keys) clocks {
	now := clocks{now: time.Now().UnixMicro()}
	runCommands(t, server, []string{"DEL", keys.Lock, keys.Fence, keys.Queue}, []string{"DEL", wire.Set})
	if c.Given.Set != "" {
		runCommands(t, server, []string{"SET", wire.Set, c.Given.Set})
	}
	if l := c.Given.Lock; l != nil {
		runCommands(t, server, server.dialect.put(keys, l.Value), []string{"PEXPIRE", keys.Lock, fmt.Sprint(l.PX)})
	}
	if f := c.Given.Fence; f != nil {
		runCommands(t, server, []string{"SET", keys.Fence, now.resolve(f.Value)})
	}
	at := parseTime(runCommands(t, server, []string{"TIME"})[0]) / 1000
	for _, w := range c.Given.Queue {
		runCommands(t, server, []string{"ZADD", keys.Queue, fmt.Sprint(w.Stamp), w.Owner, fmt.Sprint(-at - w.PX), "!" + w.Owner})
	}
	for _, n := range c.Given.Notes {
		runCommands(t, server, []string{"ZADD", keys.Queue, fmt.Sprint(-noteOffset - at - n.PX), "~" + n.Owner})
	}
	runCommands(t, server, []string{"PEXPIRE", keys.Queue, "1000000"})
	return now
}

// runScript calls the script between two readings of the node's clock.
func (c Case) runScript(t *testing.T, server *Server, now *clocks, script ScriptText, names []string) (reply any) {
	call := append([]string{"EVAL", script.Text, strconv.Itoa(len(names))}, names...)
	for _, arg := range c.Args {
		call = append(call, now.resolve(arg))
	}
	replies := runCommands(t, server, []string{"TIME"}, call, []string{"TIME"})
	now.before, now.after = parseTime(replies[0]), parseTime(replies[2])
	return replies[1]
}

// checkOutcome compares the reply and the new state.
func (c Case) checkOutcome(t *testing.T, server *Server, keys Keys, now clocks, reply any) {
	slack := time.Now().UnixMilli() - now.now/1000 + 1
	if !now.sameReply(c.Reply, reply, slack) {
		t.Errorf("reply %v, want %v", reply, c.Reply)
	}
	if got, _ := runCommands(t, server, []string{"GET", wire.Set})[0].(string); got != c.Then.Set {
		t.Errorf("marker = %q, want %q", got, c.Then.Set)
	}
	after, err := server.State(keys)
	if err != nil {
		t.Fatal(err)
	}
	want := c.Then.withClocks(now, after).At(now.after)
	after = after.At(now.after)
	if after.Owner != want.Owner || !server.dialect.tokenInCounter && after.Token != want.Token || after.Fence != want.Fence ||
		abs(after.Until-want.Until) > slack || !sameQueue(after.Queue, want.Queue, slack) || !sameNotes(after.Notes, want.Notes, slack) {
		t.Errorf("left %s, want %s", Show(after, now.after), Show(want, now.after))
	}
	wakes, err := server.Wakes()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(wakes, c.Wakes, func(got [2]string, want Wake) bool { return got == [2]string{want.Channel, want.Message} }) {
		t.Errorf("wake-ups %v, want %v", wakes, c.Wakes)
	}
}

// sameReply compares replies. Remaining times, the large numbers in lists, may be up to slack ms shorter.
func (c clocks) sameReply(want, got any, slack int64) bool {
	switch w := want.(type) {
	case []any:
		list, ok := got.([]any)
		return ok && slices.EqualFunc(w, list, func(x, y any) bool {
			left, ok1 := x.(float64)
			n, ok2 := y.(int64)
			return c.sameReply(x, y, slack) || ok1 && ok2 && left > 100 && n < int64(left) && int64(left)-n <= slack
		})
	case float64: // a number in JSON
		n, ok := got.(int64)
		return ok && n == int64(w)
	case map[string]any:
		err, ok := got.(resp.Error)
		return ok && strings.HasPrefix(string(err), fmt.Sprint(w["error"], " "))
	case string:
		if n, ok := got.(int64); ok {
			return c.matches(w, n)
		}
		return w == got
	}
	return false
}

// withClocks returns s with absolute times. A counter that the node's clock started may have any value.
func (s State) withClocks(c clocks, found quorum.Lock) (l quorum.Lock) {
	if s.Fence != nil && c.matches(s.Fence.Value, found.Fence) {
		s.Fence = counter(found.Fence)
	}
	if s.Lock != nil {
		if owner, token, ok := strings.Cut(s.Lock.Value, " "); ok && c.matches(token, found.Token) {
			s.Lock = held(fmt.Sprintf("%s %d", owner, found.Token), s.Lock.PX)
		}
	}
	l = s.twinLock()
	shift := c.before/1000 - nodeClock/1000
	if l.Until != 0 {
		l.Until += shift
	}
	places, notes := l.Queue, l.Notes
	l.Queue, l.Notes = "", quorum.Notes{}
	for p := range places.Places {
		p.Until += shift
		l.Queue = l.Queue.With(p)
	}
	for owner, until := range notes.Owners {
		l.Notes = l.Notes.With(owner, until+shift)
	}
	return l
}

// sameNotes reports whether two sets of notes are equal; their times may differ by slack.
func sameNotes(a, b quorum.Notes, slack int64) bool {
	count := 0
	for owner, until := range a.Owners {
		count++
		if at, ok := b.Until(owner); !ok || abs(at-until) > slack {
			return false
		}
	}
	for range b.Owners {
		count--
	}
	return count == 0
}
