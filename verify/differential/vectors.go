package differential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

//go:generate go run ./vectors testdata

// Vectors is the content of testdata/vectors.json: examples for checking an implementation in another
// language. docs/wire.md describes the format.
type Vectors struct {
	Wire    int                   `json:"wire"`
	Scripts map[string]ScriptText `json:"scripts"`
	Names   []Names               `json:"names"`
	Cases   []Case                `json:"cases"`
}

// ScriptText is a script as it is loaded.
type ScriptText struct {
	SHA1 string `json:"sha1"`
	Text string `json:"text"`
}

// Names holds the keys of one lock.
type Names struct {
	Lock  string `json:"lock"`
	Fence string `json:"fence"`
	Queue string `json:"queue"`
}

// Case is one call of a script. Texts like "now-31" stand for numbers.
type Case struct {
	Name      string   `json:"name"`
	Given     State    `json:"given"`
	Listening []string `json:"listening,omitempty"`
	Script    string   `json:"script"`
	Args      []string `json:"args"`
	Marker    string   `json:"marker,omitempty"`
	Reply     any      `json:"reply"`
	Then      State    `json:"then"`
	Wakes     []Wake   `json:"wakes,omitempty"`
}

// State is the state of a lock on a node. A nil pointer is a missing key.
type State struct {
	Set   string   `json:"set,omitempty"` // the node's marker
	Lock  *Key     `json:"lock,omitempty"`
	Fence *Key     `json:"fence,omitempty"`
	Queue []Waiter `json:"queue,omitempty"` // first come first
	Notes []Note   `json:"notes,omitempty"` // in the order of the owners
}

// Key is a string value with the ms until it expires.
type Key struct {
	Value string `json:"value"`
	PX    int64  `json:"px,omitempty"` // 0: never
}

// Waiter is a place in the queue, with the ms until it expires.
type Waiter struct {
	Owner string `json:"owner"`
	Stamp int64  `json:"stamp"`
	PX    int64  `json:"px"`
}

// Note is an owner from whom the lock was taken, with the ms until the note expires.
type Note struct {
	Owner string `json:"owner"`
	PX    int64  `json:"px"`
}

// Wake is a message that a script publishes.
type Wake struct {
	Channel string `json:"channel"`
	Message string `json:"message"`
}

// The clocks of the cases. Their values do not matter, but the client's must differ from the node's.
const (
	clientClock = int64(2_000_000_000_000_000)
	nodeClock   = clientClock + 250_000
	clockSpan   = int64(100_000_000_000) // numbers closer to a clock are written relative to it
)

// example is the input of a case.
type example struct {
	name      string
	given     State
	listening []string
	call      Call
}

func held(value string, px int64) *Key  { return &Key{Value: value, PX: px} }
func counter(n int64) *Key              { return &Key{Value: strconv.FormatInt(n, 10)} }
func at(owner string, s int64) Waiter   { return Waiter{Owner: owner, Stamp: s, PX: 20_000} }
func since(owner string, px int64) Note { return Note{Owner: owner, PX: px} }
func script(name, owner string) Call    { return Call{Script: name, Owner: owner, TTL: 8000} }
func (c Call) ttl(ms int64) Call        { c.TTL = ms; return c }
func (c Call) stamp(s int64) Call       { c.Stamp = s; return c }
func (c Call) token(t int64) Call       { c.Token = t; return c }
func (c Call) short() Call              { c.Short = true; return c }
func (c Call) least(t int64) Call       { c.Least = t; return c }
func (c Call) restoring() Call          { c.Restore = true; return c }
func (c Call) noted(ms int64) Call      { c.Noted = ms; return c }
func (c Call) minHold(ms int64) Call    { c.MinHold = ms; return c }
func (c Call) admitted(m string) Call   { c.Marker = m; return c }
func (c Call) clock(ahead int64) Call   { c.Clock = clientClock + ahead; return c }

// examples returns the cases of testdata/vectors.json.
func examples() []example {
	const second, hour = 1_000_000, 3600_000_000
	renew := func(owner string) Call { return script("renew", owner) }
	adopt := func(from, owner string) Call { c := script("adopt", owner).clock(0); c.From = from; return c }
	acquire := func(owner string) Call { return script("acquire", owner).clock(0) }
	heldByA := State{Lock: held("a.1 1000", 5000), Fence: counter(1031)}
	contended := heldByA
	contended.Queue = []Waiter{at("b.1", 6), at("c.1", 7)}
	contendedByA := State{Lock: heldByA.Lock, Fence: heldByA.Fence, Queue: []Waiter{at("a.1", 5), at("b.1", 6)}}
	lost := State{Lock: held("a.1 1000", 5000)}
	passedOn := State{Lock: held("b.1 1032", 5000), Fence: counter(1063)}
	keptForA := State{Lock: held("a.1!", 5000), Fence: heldByA.Fence}
	idle := State{Fence: counter(1031)}
	late := Waiter{Owner: "a.1", Stamp: 5, PX: -1000}
	takenFromA := State{Fence: counter(1031), Notes: []Note{since("a.1", 4000)}}
	waitedFor := State{Fence: idle.Fence, Queue: contended.Queue}
	hear := []string{"a", "b", "c"}
	const marker, other = "n=3 maxttl=60000 run=r1", "n=3 maxttl=60000 run=r2"
	admitted := func(s State) State { s.Set = marker; return s }
	return []example{
		{"acquire: a name that was never used starts at the client's clock", State{}, nil, acquire("a.1")},
		{"acquire: a clock that is wrong by seconds is not believed", State{}, nil, acquire("a.1").clock(5 * second)},
		{"acquire: no counter starts where clocks differ by more than a minute", State{}, nil, acquire("a.1").clock(hour)},
		{"acquire: … and the queue is left alone", State{Queue: contended.Queue}, nil, acquire("b.1").clock(-hour).stamp(6)},
		{"acquire: a counter that is there asks for no clock", idle, nil, acquire("a.1").clock(hour)},
		{"acquire: a free lock takes the next 32 tokens", idle, nil, acquire("a.1")},
		{"acquire: tokens above 2^52 keep their digits", State{Fence: counter(1<<52 + 5)}, nil, acquire("a.1")},
		{"acquire: asking again changes the expiry alone", heldByA, nil, acquire("a.1")},
		{"acquire: asking again never shortens what the lock has", heldByA, nil, acquire("a.1").ttl(1000)},
		{"acquire: asking again on a shard that lost later tokens", heldByA, nil, acquire("a.1").least(5000)},
		{"acquire: the last tokens", State{Fence: counter(1<<53 - 33)}, nil, acquire("a.1")},
		{"acquire: no tokens are left", State{Fence: counter(1<<53 - 32)}, nil, acquire("a.1")},
		{"acquire: a value whose number is no token", State{Lock: held("a.1 9007199254740992", 5000), Fence: idle.Fence}, nil, acquire("a.1")},
		{"acquire: a counter below 1", State{Fence: counter(-100)}, nil, acquire("a.1")},
		{"acquire: asking again for a lock without a token", State{Lock: held("a.1", 5000), Fence: idle.Fence}, nil, acquire("a.1")},
		{"acquire: the first token that the client may use is above the next", idle, nil, acquire("a.1").least(5000)},
		{"acquire: confirming a hand-over with a long TTL", heldByA, nil, acquire("a.1").ttl(400_000)},
		{"acquire: what is missing has its default", idle, nil, acquire("a.1").short()},
		{"acquire: … on a node that remembers its admission", admitted(idle), nil, acquire("a.1").short().admitted(marker)},
		{"acquire: held by another", heldByA, nil, acquire("b.1")},
		{"acquire: held by another library", State{Lock: held("Zm9yZWlnbg==", 5000)}, nil, acquire("b.1")},
		{"acquire: held by a key of another type", State{Lock: held("(hash)", 5000)}, nil, acquire("b.1").stamp(6)},
		{"acquire: an empty value is held", State{Lock: held("(empty)", 5000)}, nil, acquire("b.1")},
		{"acquire: held by another, with a place in the queue", heldByA, nil, acquire("b.1").stamp(6)},
		{"acquire: asking again keeps the place in the queue", contended, nil, acquire("b.1").stamp(6)},
		{"acquire: equal stamps are in the order of the ids", contended, nil, acquire("b.0").stamp(6)},
		{"acquire: a free lock goes to the first in the queue", waitedFor, hear, acquire("c.1").stamp(7)},
		{"acquire: … whether the asker has a place or not", waitedFor, hear, acquire("d.1")},
		{"acquire: … for a second at most, and no longer than the TTL", waitedFor, hear, acquire("d.1").ttl(300)},
		{"acquire: the first in the queue takes a free lock and leaves the queue", waitedFor, hear, acquire("b.1").stamp(6)},
		{"acquire: so does who came before it", waitedFor, hear, acquire("d.1").stamp(5)},
		{"acquire: who does not hear is passed over", waitedFor, []string{"c"}, acquire("d.1").stamp(9)},
		{"acquire: a free lock for which nobody listens", waitedFor, nil, acquire("d.1").stamp(9)},

		{"acquire: who lapsed is no waiter", State{Fence: idle.Fence, Queue: []Waiter{late, at("c.1", 7)}}, hear, acquire("d.1").stamp(9)},
		{"acquire: … nor counted as one", State{Lock: heldByA.Lock, Fence: idle.Fence, Queue: []Waiter{late, at("c.1", 7)}}, nil, acquire("c.1").stamp(7)},
		{"acquire: a request of before the lock was taken", takenFromA, hear, acquire("a.1")},
		{"acquire: … gets no place", takenFromA, hear, acquire("a.1").stamp(5)},
		{"acquire: … and not behind another either", State{Lock: held("b.1 1000", 5000), Fence: idle.Fence, Notes: takenFromA.Notes}, nil, acquire("a.1").stamp(5)},
		{"acquire: a note that does not count any more", State{Fence: idle.Fence, Notes: []Note{since("a.1", -1)}}, nil, acquire("a.1")},

		{"adopt: the lock of another who has left it", contended, nil, adopt("a.1", "d.1")},
		{"adopt: … and leaves no place in the queue", contendedByA, nil, adopt("a.1", "d.1")},
		{"adopt: asking again changes the expiry, and notes whose it was", heldByA, nil, adopt("e.1", "a.1")},
		{"adopt: asking again never shortens what the lock has", heldByA, nil, adopt("e.1", "a.1").ttl(1000)},
		{"adopt: … for longer than the lock stands", heldByA, nil, adopt("a.1", "d.1").noted(9000)},
		{"adopt: a request of before the lock was taken", State{Lock: held("b.1 1000", 5000), Fence: idle.Fence, Notes: takenFromA.Notes}, nil, adopt("b.1", "a.1")},
		{"adopt: it was released for its MinHold", keptForA, nil, adopt("a.1", "d.1")},
		{"adopt: somebody else was first", passedOn, nil, adopt("a.1", "d.1")},
		{"adopt: it was released, or has lapsed", waitedFor, nil, adopt("a.1", "d.1")},
		{"adopt: the counter was lost", lost, nil, adopt("a.1", "d.1")},
		{"adopt: the counter was lost, and clocks differ by more than a minute", lost, nil, adopt("a.1", "d.1").clock(hour)},
		{"adopt: the first token that the client may use is above the next", heldByA, nil, adopt("a.1", "d.1").least(5000)},

		{"commit: a higher token", heldByA, nil, script("commit", "a.1").token(1064)},
		{"commit: the same token", heldByA, nil, script("commit", "a.1").token(1000)},
		{"commit: the node has given a later one", heldByA, nil, script("commit", "a.1").token(999)},
		{"commit: others have tokens above it", State{Lock: heldByA.Lock, Fence: counter(5000)}, nil, script("commit", "a.1").token(1064)},
		{"commit: another's lock", passedOn, nil, script("commit", "a.1").token(2000)},
		{"commit: a free lock", idle, nil, script("commit", "a.1").token(2000)},
		{"commit: the counter was lost", lost, nil, script("commit", "a.1").token(1000)},

		{"renew: kept, and so many wait", contended, nil, renew("a.1")},
		{"renew: never shortens what the lock has", heldByA, nil, renew("a.1").ttl(1000)},
		{"renew: a lock that its owner has released for its MinHold", keptForA, nil, renew("a.1").token(1000).restoring()},
		{"renew: another's lock", passedOn, nil, renew("a.1").token(1000).restoring()},
		{"renew: a key of another type is another's lock", State{Lock: held("(hash)", 5000), Fence: idle.Fence}, nil, renew("a.1").token(1000).restoring()},
		{"renew: a free lock stays free", idle, nil, renew("a.1")},
		{"renew: … and is set again if the owner has it all the same", idle, nil, renew("a.1").token(1064).restoring()},
		{"renew: … even if others wait for it", waitedFor, hear, renew("a.1").token(1064).restoring()},
		{
			"renew: … but not for an owner from whom it was taken",
			State{Fence: idle.Fence, Notes: []Note{since("a.1", 4000), since("b.1", 4000)}},
			nil,
			renew("a.1").token(1064).restoring(),
		},

		{"release: nobody waits", heldByA, hear, script("release", "a.1")},
		{"release: the first waiter has it for a second at most", contended, hear, script("release", "a.1")},
		{"release: what is missing has its default", contended, hear, script("release", "a.1").short()},
		{"release: … and no longer than its TTL", contended, hear, script("release", "a.1").ttl(300)},
		{"release: who does not hear is passed over", contended, []string{"c"}, script("release", "a.1")},
		{"release: nobody hears", contended, nil, script("release", "a.1")},
		{"release: to nobody, though others wait", contended, hear, script("release", "a.1").ttl(0)},
		{
			"release: a place that has lapsed is passed over",
			State{Lock: heldByA.Lock, Fence: heldByA.Fence, Queue: []Waiter{late, at("b.1", 6)}},
			hear,
			script("release", "a.1"),
		},
		{"release: for its MinHold the lock stands, and is nobody's", contended, hear, script("release", "a.1").minHold(3000)},
		{"release: … and longer than the TTL", heldByA, nil, script("release", "a.1").minHold(400_000)},
		{"release: … once", keptForA, nil, script("release", "a.1").minHold(3000)},
		{"release: … and not where it is another's", passedOn, nil, script("release", "a.1").minHold(3000)},
		{"release: the first token of the next is above that of the node", contended, hear, script("release", "a.1").least(5000)},
		{"release: a waiter withdraws", contended, hear, script("release", "b.1")},
		{"release: a waiter withdraws behind a key of another type", State{Lock: held("(hash)", 5000), Queue: contended.Queue}, hear, script("release", "b.1")},
		{"release: a free lock that others wait for passes on", waitedFor, hear, script("release", "d.1")},
		{"release: … also when one of them withdraws", waitedFor, hear, script("release", "b.1")},
		{"release: a stranger changes nothing", contended, hear, script("release", "d.1")},
		{"release: who is woken finds the lock free where the counter was lost", State{Lock: lost.Lock, Queue: contended.Queue}, hear, script("release", "a.1")},
		{"give-back: passes to an earlier waiter and keeps the place", contended, hear, script("release", "a.1").stamp(9)},
		{"give-back: by the first in the queue leaves the lock free", contended, hear, script("release", "a.1").stamp(5)},
		{"give-back: of a free lock takes a place alone", waitedFor, hear, script("release", "a.1").stamp(9)},
		{"give-back: of what is another's takes a place", passedOn, hear, script("release", "a.1").stamp(5)},

		{"give-back: of before the lock was taken gets no place", takenFromA, hear, script("release", "a.1").stamp(5)},

		{"force: from the holder", contended, hear, script("force", "a.1")},
		{"force: not back to the holder", contendedByA, hear, script("force", "a.1")},
		{"force: a lock that was released for its MinHold", keptForA, hear, script("force", "a.1")},
		{"force: another has the lock", passedOn, hear, script("force", "a.1")},
		{"force: to nobody, though others wait", contended, hear, script("force", "a.1").ttl(0)},
		{
			"force: … from one after the other",
			State{Lock: held("a.1 1000", 5000), Fence: idle.Fence, Notes: []Note{since("b.1", 9000)}},
			hear,
			script("force", "a.1"),
		},
		{"force: … and longer than the holder has the lock here", heldByA, hear, script("force", "a.1").noted(9000)},
		{"force: a free lock", idle, hear, script("force", "a.1")},
		{"force: the counter was lost", lost, hear, script("force", "a.1")},

		{"acquire: a node that remembers its admission", admitted(idle), nil, acquire("a.1").admitted(marker)},
		{"acquire: a node that has forgotten everything", State{}, nil, acquire("a.1").stamp(6).admitted(marker)},
		{"acquire: a node whose data are another's", State{Set: other, Queue: contended.Queue}, hear, acquire("a.1").admitted(marker)},
		{"adopt: a node whose data are another's", State{Set: other, Lock: heldByA.Lock, Fence: idle.Fence}, nil, adopt("a.1", "d.1").admitted(marker)},
		{
			"commit: a node whose data are another's",
			State{Set: other, Lock: heldByA.Lock, Fence: idle.Fence},
			nil,
			script("commit", "a.1").token(1064).admitted(marker),
		},
		{"renew: a node that has forgotten everything", State{}, nil, renew("a.1").token(1000).restoring().admitted(marker)},
		{
			"release: a node whose data are another's",
			State{Set: other, Lock: contended.Lock, Fence: idle.Fence, Queue: contended.Queue},
			hear,
			script("release", "a.1").admitted(marker),
		},
		{
			"force: a node whose data are another's",
			State{Set: other, Lock: contended.Lock, Fence: idle.Fence, Queue: contended.Queue},
			hear,
			script("force", "a.1").admitted(marker),
		},

		{"inspect: held and waited for", contended, nil, script("inspect", "")},
		{"inspect: a key of another type", State{Lock: held("(hash)", 5000)}, nil, script("inspect", "")},
		{"inspect: nothing known", State{}, nil, script("inspect", "")},
	}
}

// MakeVectors makes the cases by the twin.
func MakeVectors() Vectors {
	v := Vectors{Wire: 3, Scripts: make(map[string]ScriptText)}
	for name, s := range scripts {
		v.Scripts[name] = ScriptText{SHA1: s.SHA, Text: s.Text}
	}
	for name, s := range map[string]*wire.Script{"drop": wire.Drop, "admit": wire.Admit} { // not about Holdfast locks
		v.Scripts[name] = ScriptText{SHA1: s.SHA, Text: s.Text}
	}
	for _, lock := range []string{
		"lock:invoice/42", "invoice/42", "lock:{tenant-7}invoice", "{tenant-7}invoice", ":{tenant-7}", "lock:a{}b{c}", "lock:a{b", "lock:a}b", "lock:ключ",
	} {
		k := KeysOf(lock)
		v.Names = append(v.Names, Names(k))
	}
	for _, ex := range examples() {
		v.Cases = append(v.Cases, ex.makeCase())
	}
	return v
}

// makeCase runs an example on the twin.
func (ex example) makeCase() Case {
	hears := func(owner string) bool {
		client, _, _ := strings.Cut(owner, ".")
		return slices.Contains(ex.listening, client)
	}
	ex.call.Set = ex.given.Set
	after, reply, messages := ex.call.Twin(ex.given.twinLock(), nodeClock, hears)
	after = after.At(nodeClock)
	c := Case{
		Name: ex.name, Given: ex.given, Listening: ex.listening, Script: ex.call.Script,
		Args: []string{}, Marker: ex.call.Marker, Reply: symbolize(reply), Then: stateOf(after),
	}
	c.Then.Set = ex.given.Set
	for _, arg := range ex.call.Arguments() {
		c.Args = append(c.Args, symbolText(arg))
	}
	for _, message := range messages {
		client, _, _ := strings.Cut(message, ".")
		c.Wakes = append(c.Wakes, Wake{Channel: wire.Wake + client, Message: message})
	}
	return c
}

// twinLock converts s to the twin's lock, at nodeClock.
func (s State) twinLock() (l quorum.Lock) {
	now := nodeClock / 1000
	if s.Lock != nil {
		l.Owner, l.Until = s.Lock.Value, now+s.Lock.PX
		if owner, token, ok := strings.Cut(s.Lock.Value, " "); ok {
			if n, err := strconv.ParseInt(token, 10, 64); err == nil && n > 0 && n <= quorum.MaxToken {
				l.Owner, l.Token = owner, n
			}
		}
	}
	if s.Fence != nil {
		l.Fence, _ = strconv.ParseInt(s.Fence.Value, 10, 64) // written by counter
	}
	for _, w := range s.Queue {
		l.Queue = l.Queue.With(quorum.Place{Owner: w.Owner, Stamp: w.Stamp, Until: now + w.PX})
	}
	for _, n := range s.Notes {
		l.Notes = l.Notes.With(n.Owner, now+n.PX)
	}
	return l
}

func stateOf(l quorum.Lock) (s State) {
	now := nodeClock / 1000
	if l.Owner != "" {
		s.Lock = &Key{Value: l.Owner, PX: l.Until - now}
		if l.Token != 0 {
			s.Lock.Value += " " + symbolText(strconv.FormatInt(l.Token, 10))
		}
	}
	if l.Fence != 0 {
		s.Fence = &Key{Value: symbolText(strconv.FormatInt(l.Fence, 10))}
	}
	for p := range l.Queue.Places {
		s.Queue = append(s.Queue, Waiter{Owner: p.Owner, Stamp: p.Stamp, PX: p.Until - now})
	}
	for owner, until := range l.Notes.Owners {
		s.Notes = append(s.Notes, Note{Owner: owner, PX: until - now})
	}
	return s
}

// symbolize writes numbers near a clock relative to that clock.
func symbolize(reply any) any {
	switch r := reply.(type) {
	case int64:
		if text := symbolText(strconv.FormatInt(r, 10)); strings.HasPrefix(text, "no") {
			return text
		}
	case string:
		return symbolText(r)
	case resp.Error:
		word, _, _ := strings.Cut(string(r), " ")
		return map[string]string{"error": word}
	case []any:
		out := make([]any, len(r))
		for i, v := range r {
			out[i] = symbolize(v)
		}
		return out
	}
	return reply
}

func symbolText(text string) string {
	n, err := strconv.ParseInt(text, 10, 64)
	relative := func(name string, d int64) string {
		if d == 0 {
			return name
		}
		return fmt.Sprintf("%s%+d", name, d)
	}
	switch {
	case err != nil:
		return text
	case abs(n-nodeClock) <= 4*quorum.Block:
		return relative("node", n-nodeClock)
	case abs(n-clientClock) <= clockSpan:
		return relative("now", n-clientClock)
	}
	return text
}

// Encode returns the text of testdata/vectors.json, with one line per part of a case.
func (v Vectors) Encode() ([]byte, error) {
	var b bytes.Buffer
	line := func(indent, name string, value any, end string) error {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(value); err != nil {
			return err
		}
		if name != "" {
			name = strconv.Quote(name) + ": "
		}
		b.WriteString(indent + name + strings.TrimSpace(text.String()) + end + "\n")
		return nil
	}
	comma := func(last bool) string { return map[bool]string{false: ","}[last] }
	b.WriteString("{\n")
	err := line("  ", "wire", v.Wire, ",")
	b.WriteString("  \"scripts\": {\n")
	for i, name := range slices.Sorted(maps.Keys(v.Scripts)) {
		err = firstError(err, line("    ", name, v.Scripts[name], comma(i == len(v.Scripts)-1)))
	}
	b.WriteString("  },\n  \"names\": [\n")
	for i, n := range v.Names {
		err = firstError(err, line("    ", "", n, comma(i == len(v.Names)-1)))
	}
	b.WriteString("  ],\n  \"cases\": [\n")
	for i, c := range v.Cases {
		b.WriteString("    {\n")
		err = firstError(err, line("      ", "name", c.Name, ","))
		err = firstError(err, line("      ", "given", c.Given, ","))
		if c.Listening != nil {
			err = firstError(err, line("      ", "listening", c.Listening, ","))
		}
		err = firstError(err, line("      ", "script", c.Script, ","))
		err = firstError(err, line("      ", "args", c.Args, ","))
		if c.Marker != "" {
			err = firstError(err, line("      ", "marker", c.Marker, ","))
		}
		err = firstError(err, line("      ", "reply", c.Reply, ","))
		err = firstError(err, line("      ", "then", c.Then, comma(c.Wakes == nil)))
		if c.Wakes != nil {
			err = firstError(err, line("      ", "wakes", c.Wakes, ""))
		}
		b.WriteString("    }" + comma(i == len(v.Cases)-1) + "\n")
	}
	b.WriteString("  ]\n}\n")
	return b.Bytes(), err
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
