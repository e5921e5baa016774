// Package differential runs the Lua scripts on a real server and their Go twin,
// quorum.Lock, side by side, and compares what they answer and what they leave
// behind.
//
// A step is compared from the state in which the server really is, so that
// nothing adds up: what the server holds is read, the script is run, the twin is
// given the same state and arguments, and both results must be equal. The server's
// clock cannot be stopped; it is read before and after each step, and the twin is
// run for each moment between the two that makes a difference. So times are exact
// to the length of a step, and everything else is exact.
package differential

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A Call is one script with what it is given. TTL and MinHold are in milliseconds; Clock, Stamp, Token, Least and Anew
// are what the protocol calls them. Marker is with what the client was
// admitted, "" where it does not matter, and Set what the node has as its marker.
type Call struct {
	Script  string
	Owner   string
	From    string
	TTL     int64
	Clock   int64
	Stamp   int64
	Token   int64
	Least   int64
	Anew    bool
	MinHold int64 // release: 0 for none
	Noted   int64 // adopt, force: for how many ms the node knows from whom it took the lock, or longer
	Marker  string
	Set     string
	Short   bool // leaves out the arguments at the end that have their defaults

	java bool // in the format of Redisson, which sets no lock again, and so notes none that was forced
}

// member says whether the script compares the marker of the set.
func (c Call) member() bool { return c.Script != "inspect" }

// stranger says whether the node is not the one that was admitted.
func (c Call) stranger() bool { return c.member() && c.Marker != "" && c.Marker != c.Set }

// Keys are the keys of one lock.
type Keys struct{ Lock, Fence, Queue string }

// KeysOf are the keys of the lock on key.
func KeysOf(key string) Keys {
	return Keys{Lock: key, Fence: wire.ServerFence(key), Queue: wire.QueueKey(key)}
}

var scripts = map[string]*wire.Script{
	"acquire": wire.Acquire, "adopt": wire.Adopt, "commit": wire.Commit, "renew": wire.Renew, "release": wire.Release,
	"force": wire.Force, "inspect": wire.Inspect,
}

// Arguments are what the script is called with, after its keys and before the marker.
func (c Call) Arguments() []string {
	args, may := c.all(), defaults[c.Script]
	for n := len(args); c.Short && len(may) > 0 && n > 0 && args[n-1] == may[len(may)-1]; n-- {
		args, may = args[:n-1], may[:len(may)-1]
	}
	return args
}

// call is Arguments with the marker.
func (c Call) call() []string {
	if c.Marker == "" || !c.member() {
		return c.Arguments()
	}
	return append(c.Arguments(), c.Marker)
}

// defaults are the arguments that may be left out at the end.
var defaults = map[string][]string{"acquire": {"", "0"}, "adopt": {"0"}, "release": {"0", "", "1000", ""}}

func (c Call) all() []string {
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	some := func(n int64) string {
		if n == 0 {
			return ""
		}
		return num(n)
	}
	handOver := num(quorum.HandOver(c.TTL*int64(time.Millisecond)) / int64(time.Millisecond))
	switch c.Script {
	case "acquire":
		return []string{c.Owner, num(c.TTL), num(c.Clock), some(c.Stamp), num(c.Least)}
	case "adopt":
		return []string{c.From, c.Owner, num(c.TTL), num(c.Clock), num(c.Noted), num(c.Least)}
	case "commit":
		return []string{c.Owner, num(c.Token)}
	case "renew":
		if !c.Anew {
			return []string{c.Owner, num(c.TTL)}
		}
		return []string{c.Owner, num(c.TTL), num(c.Token)}
	case "release":
		return []string{c.Owner, num(c.Least), some(c.Stamp), handOver, some(c.MinHold)}
	case "force":
		return []string{c.Owner, handOver, num(c.Least), num(c.Noted), why}
	}
	return nil
}

// keys are the keys that the script is called with.
func (c Call) keys(k Keys) []string {
	keys := []string{k.Lock, k.Fence, k.Queue}
	if c.Marker != "" {
		keys = append(keys, wire.Set)
	}
	return keys
}

var kinds = map[string]quorum.AskKind{
	"acquire": quorum.AskAcquire, "adopt": quorum.AskAdopt, "commit": quorum.AskCommit, "renew": quorum.AskRenew,
	"release": quorum.AskRelease,
}

// ask is the request that c is.
func (c Call) ask() quorum.Ask {
	ttl := c.TTL * int64(time.Millisecond)
	return quorum.Ask{
		Kind: kinds[c.Script], Owner: c.Owner, From: c.From, TTL: ttl, HandOver: quorum.HandOver(ttl),
		Clock: c.Clock, Stamp: c.Stamp, Token: c.Token, Least: c.Least, Anew: c.Anew, MinHold: c.MinHold * int64(time.Millisecond),
		Noted: c.Noted * int64(time.Millisecond),
	}
}

// Twin carries c out on l, at now. The reply has the shape of the server's; told are the messages
// that the script sends to clients that listen.
func (c Call) Twin(l quorum.Lock, now int64, hears func(string) bool) (after quorum.Lock, reply any, told []string) {
	one, ask := map[bool]int64{true: 1}, c.ask()
	l = l.At(now)
	switch {
	case c.stranger():
		return l, unadmitted, nil
	case c.Script == "force":
		after, ok, woken := l.Force(now, c.Owner, c.Least, quorum.HandOver(ask.TTL)/int64(time.Millisecond), c.Noted, hears)
		if c.java {
			after.Notes = quorum.Notes{}
		}
		told = wake(woken)
		if ok && hears(l.Owner) {
			told = append(told, quorum.Forced(l.Owner, why))
		}
		return after, one[ok], told
	case c.Script == "inspect":
		left := int64(-2)
		if l.Owner != "" {
			left = l.Until - now/1000
		}
		return l, []any{l.Owner, left, strconv.FormatInt(l.Token, 10), int64(l.Queue.Len())}, nil
	}
	after, r, woken := l.Answer(now, &ask, hears)
	if c.java {
		after.Notes = quorum.Notes{}
	}
	if r.Kind == quorum.Freed {
		return after, one[l.Owner == c.Owner], wake(woken)
	}
	return after, served(r), wake(woken)
}

// why is what every force tells the holder.
const why = "root@web-3: it hangs"

// wake is the message of w, if there is one.
func wake(w quorum.Wake) []string {
	if w.Owner == "" {
		return nil
	}
	return []string{w.String()}
}

// served is r as a server says it.
func served(r quorum.Reply) any {
	switch r.Kind {
	case quorum.Granted:
		return r.Token
	case quorum.Denied:
		return []any{r.Left / int64(time.Millisecond), r.Holder, int64(r.Waiters)}
	case quorum.Accepted:
		return int64(1)
	case quorum.Refused:
		return int64(0)
	case quorum.Kept:
		return int64(r.Waiters)
	case quorum.NotMine:
		return int64(-1)
	}
	return resp.Error(r.Err.Error())
}

// unadmitted is the error reply of a node that is not the one that was admitted.
const unadmitted = resp.Error("UNADMITTED its data were lost or replaced since it was let vote")

// Server is a connection to a real server, and one that listens for wake-ups.
type Server struct {
	conn, ear  *resp.Conn
	wakeMarker string
	dialect    dialect
}

// dialect is how a format keeps on a node what the twin knows.
type dialect struct {
	scripts map[string]*wire.Script
	state   string              // stateLua of it
	says    func(string) string // what the twin calls so
	means   func(string) string // and back
	counts  bool                // the counter, which is the lock's, tells the token of its holder; else the lock's value does

	put func(k Keys, owner string) []string // the command that makes a free lock owner's
}

func same(text string) string { return text }

var plain = dialect{
	scripts: scripts, state: stateLua, says: same, means: same,
	put: func(k Keys, owner string) []string { return Put(k, owner, 8000) },
}

// Connect opens both connections. Only the clients named in listening hear their
// wake-ups.
func Connect(ctx context.Context, addr string, listening ...string) (*Server, error) {
	return connectIn(ctx, plain, addr, listening...)
}

func connectIn(ctx context.Context, d dialect, addr string, listening ...string) (*Server, error) {
	s := &Server{wakeMarker: wire.Wake + "~end", dialect: d}
	for _, c := range []**resp.Conn{&s.conn, &s.ear} {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		*c = resp.NewConn(conn)
	}
	channels := []string{s.wakeMarker}
	for _, client := range listening {
		channels = append(channels, wire.Wake+d.says(client))
	}
	if err := s.listen(channels...); err != nil {
		return nil, err
	}
	for _, script := range d.scripts {
		if _, err := s.Do([]string{"SCRIPT", "LOAD", script.Text}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// listen has Wakes return the messages of more channels.
func (s *Server) listen(channels ...string) error {
	if len(channels) == 0 {
		return nil
	}
	if _, err := s.ear.Write(resp.AppendCommand(nil, append([]string{"SUBSCRIBE"}, channels...)...)); err != nil {
		return err
	}
	for range channels {
		if _, err := s.ear.ReadValue(); err != nil {
			return err
		}
	}
	return nil
}

// Close hangs up.
func (s *Server) Close() error { return errors.Join(s.conn.Close(), s.ear.Close()) }

// Do sends commands in one batch and returns their replies, error replies among
// them.
func (s *Server) Do(cmds ...[]string) ([]any, error) {
	values, err := s.conn.Do(cmds...)
	if err != nil {
		return nil, err
	}
	replies := make([]any, len(values))
	for i, v := range values {
		replies[i] = v.Decode()
	}
	return replies, nil
}

// Wakes returns the wake-ups that have been sent since it was last called, each
// as the channel and the message.
func (s *Server) Wakes() ([][2]string, error) {
	if _, err := s.Do([]string{"PUBLISH", s.wakeMarker, ""}); err != nil {
		return nil, err
	}
	var wakes [][2]string
	for {
		v, err := s.ear.ReadValue()
		if err != nil {
			return nil, err
		}
		message, _ := v.Decode().([]any)
		if len(message) != 3 {
			return nil, fmt.Errorf("unexpected message %v", message)
		}
		channel, text := message[1].(string), message[2].(string)
		if channel == s.wakeMarker {
			return wakes, nil
		}
		wakes = append(wakes, [2]string{s.dialect.means(channel), s.dialect.means(text)})
	}
}

// stateLua reads what a node knows about a lock, with absolute times.
const stateLua = `
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  value = '(' .. redis.call('TYPE', KEYS[1]).ok .. ')'
elseif value == '' then
  value = '(empty)'
end
return {
  value or '', redis.call('PEXPIRETIME', KEYS[1]),
  redis.call('GET', KEYS[2]) or '0', redis.call('PTTL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), redis.call('PEXPIRETIME', KEYS[3]),
}`

func (s *Server) stateCommand(k Keys) []string {
	return []string{"EVAL", s.dialect.state, "3", k.Lock, k.Fence, k.Queue}
}

// Put is the command that makes the lock what the scripts call owner, unless it is
// held.
func Put(k Keys, owner string, px int64) []string {
	ttl := strconv.FormatInt(px, 10)
	switch owner {
	case "(hash)":
		const hash = "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], 'id:1', 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) end"
		return []string{"EVAL", hash, "1", k.Lock, ttl}
	case "(empty)":
		owner = ""
	}
	return []string{"SET", k.Lock, owner, "NX", "PX", ttl}
}

// parseState makes a quorum.Lock of the reply to stateCommand.
func (s *Server) parseState(reply any) (l quorum.Lock, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 6 {
		return l, fmt.Errorf("state: %v", reply)
	}
	l.Owner, l.Until = s.dialect.means(list[0].(string)), max(list[1].(int64), 0) // -1, -2: no time
	if l.Fence, err = strconv.ParseInt(list[2].(string), 10, 64); err != nil {
		return l, err
	}
	if list[3].(int64) >= 0 {
		return l, errors.New("the counter expires")
	}
	switch owner, token, _ := strings.Cut(l.Owner, " "); {
	case !s.dialect.counts:
		if n, err := strconv.ParseInt(token, 10, 64); err == nil && n > 0 && n <= quorum.MaxToken {
			l.Owner, l.Token = owner, n
		}
	case strings.Contains(l.Owner, ".") && !quorum.IsKept(l.Owner):
		l.Token = max(quorum.Base(l.Fence), 0)
	}
	var last int64
	l.Queue, l.Notes, last, err = s.parseQueue(list[4].([]any))
	if end := list[5].(int64); err == nil && last >= end && end >= 0 {
		err = fmt.Errorf("the queue expires at %d, and what is in it at %d", end, last)
	}
	return l, err
}

// noted is what the time of a note is added to, for its score.
const noted = 100_000_000_000_000

// parseQueue reads the members of a queue with their scores: the places, the notes, and when the last of both lapses.
func (s *Server) parseQueue(list []any) (q quorum.Queue, notes quorum.Notes, last int64, err error) {
	stamps, lapses := make(map[string]int64), make(map[string]int64)
	for pair := range slices.Chunk(list, 2) {
		score, err := strconv.ParseFloat(pair[1].(string), 64)
		if err != nil {
			return "", notes, 0, err
		}
		member := s.dialect.means(pair[0].(string))
		if owner, ok := strings.CutPrefix(member, "!"); ok {
			lapses[owner] = int64(-score)
			last = max(last, int64(-score))
		} else if owner, ok := strings.CutPrefix(member, "~"); ok {
			notes = notes.With(owner, int64(-score)-noted)
			last = max(last, int64(-score)-noted)
		} else {
			stamps[member] = int64(score)
		}
	}
	if len(stamps) != len(lapses) {
		return "", notes, 0, fmt.Errorf("%d places, of which %d lapse", len(stamps), len(lapses))
	}
	for owner, stamp := range stamps {
		q = q.With(quorum.Place{Owner: owner, Stamp: stamp, Until: lapses[owner]})
	}
	return q, notes, last, nil
}

// micros reads a reply to TIME.
func micros(reply any) int64 {
	list, _ := reply.([]any)
	if len(list) != 2 {
		return 0
	}
	s, err1 := strconv.ParseInt(list[0].(string), 10, 64)
	us, err2 := strconv.ParseInt(list[1].(string), 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return s*1_000_000 + us
}

// Outcome is what a step did on the server.
type Outcome struct {
	Reply         any
	After         quorum.Lock
	Before, Until int64 // the server's clock before and after, in µs
}

// Run carries c out on the server.
func (s *Server) Run(c Call, k Keys) (Outcome, error) {
	keys := c.keys(k)
	call := append([]string{"EVALSHA", s.dialect.scripts[c.Script].SHA, strconv.Itoa(len(keys))}, keys...)
	for _, arg := range c.call() {
		call = append(call, s.dialect.says(arg))
	}
	replies, err := s.Do([]string{"TIME"}, call, s.stateCommand(k), []string{"TIME"})
	if err != nil {
		return Outcome{}, err
	}
	if err, ok := replies[1].(resp.Error); ok && err != unadmitted && !strings.HasPrefix(string(err), "CLOCK ") && string(err) != quorum.ErrTokensEnd.Error() {
		return Outcome{}, fmt.Errorf("%s: %w", c.Script, err)
	}
	if list, ok := replies[1].([]any); ok {
		if c.Script == "acquire" {
			list = list[:3] // what a format says beyond that is not the twin's
		}
		for i, v := range list {
			if text, ok := v.(string); ok {
				list[i] = s.dialect.means(text)
			}
		}
		replies[1] = list
	}
	o := Outcome{Reply: replies[1], Before: micros(replies[0]), Until: micros(replies[3])}
	o.After, err = s.parseState(replies[2])
	return o, err
}

// State reads what the server holds.
func (s *Server) State(k Keys) (quorum.Lock, error) {
	replies, err := s.Do(s.stateCommand(k))
	if err != nil {
		return quorum.Lock{}, err
	}
	return s.parseState(replies[0])
}

// Compare says how o differs from what the twin makes of before, or "" where a
// moment within the step explains it. It returns the messages of the twin.
func Compare(c Call, before quorum.Lock, o Outcome, hears func(string) bool) (told []string, difference string) {
	var tried []string
	for _, now := range moments(o) {
		for _, before := range lapsing(before, now) {
			l, reply, told := c.Twin(before, now, hears)
			diff := differ(l, reply, now, o)
			if diff == "" {
				return told, ""
			}
			tried = append(tried, diff)
		}
	}
	return nil, strings.Join(slices.Compact(tried), "\n")
}

// moments are the times within a step at which the twin may do different things:
// its ends and the first of each millisecond.
func moments(o Outcome) []int64 {
	at := []int64{o.Before, o.Until}
	for ms := o.Before/1000 + 1; ms <= o.Until/1000; ms++ {
		at = append(at, ms*1000)
	}
	return at
}

// lapsing is what the server may have of l at now. A key that somebody asks for is gone once the
// clock is past its time; newer servers, which look for such keys themselves, may drop it in the
// millisecond before.
func lapsing(l quorum.Lock, now int64) []quorum.Lock {
	all := []quorum.Lock{l}
	if l.Until == now/1000 {
		l.Until--
		all = append(all, l)
	}
	return all
}

// differ compares what the twin did at now with what the server did within the
// step. A script may read the clock several times, for each key that it sets and for
// a counter that is new: then times need only be of the step.
func differ(l quorum.Lock, reply any, now int64, o Outcome) string {
	slack := o.Until/1000 - o.Before/1000
	end := o.Until / 1000
	var diffs []string
	note := func(what string, twin, server any) {
		diffs = append(diffs, fmt.Sprintf("%s: twin %v, server %v", what, twin, server))
	}
	// What lapsed between the script and the look at what it left is no difference.
	gone := func(until int64, isGone bool) bool { return isGone && until <= end }
	when := func(what string, twin, server int64) {
		if abs(twin-server) > slack {
			note(what, twin, server)
		}
	}
	seeded := func(twin, server int64) bool { // the first top, from the node's clock
		return twin == now && o.Before <= server && server <= o.Until
	}
	a := o.After
	if !gone(l.Until, a.Owner == "") {
		if l.Owner != a.Owner {
			note("owner", l.Owner, a.Owner)
		}
		if l.Token != a.Token && !seeded(quorum.Top(l.Token), quorum.Top(a.Token)) {
			note("token", l.Token, a.Token)
		}
		when("lock expires", l.Until, a.Until)
	}
	if l.Fence != a.Fence && !seeded(l.Fence, a.Fence) {
		note("counter", l.Fence, a.Fence)
	}
	// What has lapsed by the end of the step may be there still, or not.
	l, a = l.At(end*1000), a.At(end*1000)
	if !sameLine(l.Queue, a.Queue, slack) {
		note("queue", show(l.Queue, end), show(a.Queue, end))
	}
	for owner, until := range l.Notes.Owners {
		if at, ok := a.Notes.Until(owner); !ok || abs(at-until) > slack {
			note("note about "+owner, until, at)
		}
	}
	for owner, until := range a.Notes.Owners {
		if _, ok := l.Notes.Until(owner); !ok && until > end+slack {
			note("note about "+owner, nil, until)
		}
	}
	base, ok1 := reply.(int64)
	served, ok2 := o.Reply.(int64)
	if !sameReply(reply, o.Reply, slack) && !(ok1 && ok2 && seeded(base+quorum.Block-1, served+quorum.Block-1)) {
		note("reply", reply, o.Reply)
	}
	return strings.Join(diffs, "; ")
}

// sameReply compares replies, of which the time left in a list may differ by slack.
func sameReply(twin, server any, slack int64) bool {
	a, ok1 := twin.([]any)
	b, ok2 := server.([]any)
	if !ok1 || !ok2 {
		return twin == server
	}
	return slices.EqualFunc(a, b, func(x, y any) bool {
		m, ok1 := x.(int64)
		n, ok2 := y.(int64)
		return x == y || ok1 && ok2 && m > 0 && n >= 0 && abs(m-n) <= slack
	})
}

func abs(n int64) int64 { return max(n, -n) }

// sameLine reports whether two queues are the same, but for the times at which places lapse, which may differ by slack.
func sameLine(a, b quorum.Queue, slack int64) bool {
	return slices.EqualFunc(slices.Collect(a.Places), slices.Collect(b.Places), func(a, b quorum.Place) bool {
		return a.Owner == b.Owner && a.Stamp == b.Stamp && abs(a.Until-b.Until) <= slack
	})
}

// show prints a queue, with times relative to now, in ms.
func show(q quorum.Queue, now int64) string {
	var b strings.Builder
	for p := range q.Places {
		fmt.Fprintf(&b, "[%s %d %+d]", p.Owner, p.Stamp, p.Until-now)
	}
	return b.String()
}

// Show prints a lock, with times relative to now in ms.
func Show(l quorum.Lock, now int64) string {
	var notes strings.Builder
	for owner, until := range l.Notes.Owners {
		fmt.Fprintf(&notes, "[%s %+d]", owner, until-now/1000)
	}
	return fmt.Sprintf("owner %q with token %d %+d, counter %d, queue %s, taken from %s",
		l.Owner, l.Token, l.Until-now/1000, l.Fence, show(l.Queue, now/1000), &notes)
}
