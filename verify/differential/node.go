// Package differential runs the Lua scripts on a real server and their Go twin, quorum.Lock, side by side, and compares
// their replies and the data that they leave.
//
// Each step starts from the real state of the server, so that differences do not add up: the test reads the state, runs
// the script, and runs the twin with the same state and arguments. Both results must be equal. The test cannot stop the
// server's clock. It reads the clock before and after each step, and runs the twin for each moment between the two that
// makes a difference. So times are exact to the length of a step, and everything else is exact.
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

// Call is one script with its arguments. TTL and MinHold are in milliseconds; the protocol defines Clock, Stamp,
// Token, Least and Restore. The client was admitted with Marker, "" if it does not matter; Set has the node's
// marker.
type Call struct {
	Script  string
	Owner   string
	From    string
	TTL     int64
	Clock   int64
	Stamp   int64
	Token   int64
	Least   int64
	Restore bool
	MinHold int64 // release: 0 for none
	Noted   int64 // adopt, force: minimal lifetime of the node's note, in ms
	Marker  string
	Set     string
	Short   bool // omit trailing arguments that have their defaults

	java bool // format of Redisson, which restores no lock and keeps no notes
}

// checksMarker reports whether the script compares the marker of the set.
func (c Call) checksMarker() bool { return c.Script != "inspect" }

// isRejected reports whether the node rejects the call because its marker differs.
func (c Call) isRejected() bool { return c.checksMarker() && c.Marker != "" && c.Marker != c.Set }

// Keys holds the keys of one lock.
type Keys struct{ Lock, Fence, Queue string }

// KeysOf returns the keys of the lock on key.
func KeysOf(key string) Keys {
	return Keys{Lock: key, Fence: wire.ServerFence(key), Queue: wire.QueueKey(key)}
}

var scripts = map[string]*wire.Script{
	"acquire": wire.Acquire, "adopt": wire.Adopt, "commit": wire.Commit, "renew": wire.Renew, "release": wire.Release,
	"force": wire.Force, "inspect": wire.Inspect,
}

// Arguments returns the arguments of the script, after its keys and before the marker.
func (c Call) Arguments() []string {
	args, may := c.allArguments(), defaults[c.Script]
	for n := len(args); c.Short && len(may) > 0 && n > 0 && args[n-1] == may[len(may)-1]; n-- {
		args, may = args[:n-1], may[:len(may)-1]
	}
	return args
}

// argumentsWithMarker returns Arguments with the marker.
func (c Call) argumentsWithMarker() []string {
	if c.Marker == "" || !c.checksMarker() {
		return c.Arguments()
	}
	return append(c.Arguments(), c.Marker)
}

// defaults are the values of optional trailing arguments.
var defaults = map[string][]string{"acquire": {"", "0"}, "adopt": {"0"}, "release": {"0", "", "1000", ""}}

func (c Call) allArguments() []string {
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	some := func(n int64) string {
		if n == 0 {
			return ""
		}
		return num(n)
	}
	handOver := num(quorum.HandOverTime(c.TTL*int64(time.Millisecond)) / int64(time.Millisecond))
	switch c.Script {
	case "acquire":
		return []string{c.Owner, num(c.TTL), num(c.Clock), some(c.Stamp), num(c.Least)}
	case "adopt":
		return []string{c.From, c.Owner, num(c.TTL), num(c.Clock), num(c.Noted), num(c.Least)}
	case "commit":
		return []string{c.Owner, num(c.Token)}
	case "renew":
		if !c.Restore {
			return []string{c.Owner, num(c.TTL)}
		}
		return []string{c.Owner, num(c.TTL), num(c.Token)}
	case "release":
		return []string{c.Owner, num(c.Least), some(c.Stamp), handOver, some(c.MinHold)}
	case "force":
		return []string{c.Owner, handOver, num(c.Least), num(c.Noted), forceReason}
	}
	return nil
}

// scriptKeys returns the keys of the script.
func (c Call) scriptKeys(k Keys) []string {
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

// request returns c as a request to the twin.
func (c Call) request() quorum.Ask {
	ttl := c.TTL * int64(time.Millisecond)
	return quorum.Ask{
		Kind: kinds[c.Script], Owner: c.Owner, From: c.From, TTL: ttl, HandOver: quorum.HandOverTime(ttl),
		Clock: c.Clock, Stamp: c.Stamp, Token: c.Token, Least: c.Least, Restore: c.Restore, MinHold: c.MinHold * int64(time.Millisecond),
		Noted: c.Noted * int64(time.Millisecond),
	}
}

// Twin executes c on l at now. The reply has the form of the server's; messages are the texts that the script
// sends to listening clients.
func (c Call) Twin(l quorum.Lock, now int64, hears func(string) bool) (after quorum.Lock, reply any, messages []string) {
	one, ask := map[bool]int64{true: 1}, c.request()
	l = l.At(now)
	switch {
	case c.isRejected():
		return l, unadmittedReply, nil
	case c.Script == "force":
		after, ok, woken := l.Force(now, c.Owner, c.Least, quorum.HandOverTime(ask.TTL)/int64(time.Millisecond), c.Noted, hears)
		if c.java {
			after.Notes = quorum.Notes{}
		}
		messages = wakeMessages(woken)
		if ok && hears(l.Owner) {
			messages = append(messages, quorum.Forced(l.Owner, forceReason))
		}
		return after, one[ok], messages
	case c.Script == "inspect":
		left := int64(-2)
		if l.Owner != "" {
			left = l.Until - now/1000
		}
		return l, []any{l.Owner, left, strconv.FormatInt(l.Token, 10), int64(l.Queue.Len())}, nil
	}
	after, r, woken := l.Execute(now, &ask, hears)
	if c.java {
		after.Notes = quorum.Notes{}
	}
	if r.Kind == quorum.Freed {
		return after, one[l.Owner == c.Owner], wakeMessages(woken)
	}
	return after, replyOf(r), wakeMessages(woken)
}

// forceReason is the reason in every force.
const forceReason = "root@web-3: it hangs"

// wakeMessages returns the message of w, if there is one.
func wakeMessages(w quorum.Wake) []string {
	if w.Owner == "" {
		return nil
	}
	return []string{w.String()}
}

// replyOf returns r in the form of a server's reply.
func replyOf(r quorum.Reply) any {
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

// unadmittedReply is the error reply of a node whose marker differs.
const unadmittedReply = resp.Error("UNADMITTED its data were lost or replaced since it was let vote")

// Server holds a connection to a real server, and one that receives wake-ups.
type Server struct {
	conn, ear  *resp.Conn
	wakeMarker string
	dialect    dialect
}

// dialect describes a format: how the twin's state is stored on a node.
type dialect struct {
	scripts        map[string]*wire.Script
	state          string              // Lua script that reads the state
	toServer       func(string) string // translates the twin's names
	fromServer     func(string) string // translates back
	tokenInCounter bool                // the lock's counter holds the holder's token; otherwise the value does

	put func(k Keys, owner string) []string // command that gives a free lock to owner
}

func identity(text string) string { return text }

var plainDialect = dialect{
	scripts: scripts, state: stateLua, toServer: identity, fromServer: identity,
	put: func(k Keys, owner string) []string { return Put(k, owner, 8000) },
}

// Connect opens both connections. Only the clients in listening receive their wake-ups.
func Connect(ctx context.Context, addr string, listening ...string) (*Server, error) {
	return connectFormat(ctx, plainDialect, addr, listening...)
}

func connectFormat(ctx context.Context, d dialect, addr string, listening ...string) (*Server, error) {
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
		channels = append(channels, wire.Wake+d.toServer(client))
	}
	if err := s.subscribe(channels...); err != nil {
		return nil, err
	}
	for _, script := range d.scripts {
		if _, err := s.Do([]string{"SCRIPT", "LOAD", script.Text}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// subscribe makes Wakes also return the messages of these channels.
func (s *Server) subscribe(channels ...string) error {
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

// Close closes both connections.
func (s *Server) Close() error { return errors.Join(s.conn.Close(), s.ear.Close()) }

// Do sends commands in one batch and returns their replies, including error replies.
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

// Wakes returns the wake-ups sent since its last call, each as channel and message.
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
		wakes = append(wakes, [2]string{s.dialect.fromServer(channel), s.dialect.fromServer(text)})
	}
}

// stateLua reads the state of a lock on a node, with absolute times.
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

// Put returns the command that gives a free lock to owner; owner may be a word such as (hash).
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

// parseState decodes the reply to stateCommand.
func (s *Server) parseState(reply any) (l quorum.Lock, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 6 {
		return l, fmt.Errorf("state: %v", reply)
	}
	l.Owner, l.Until = s.dialect.fromServer(list[0].(string)), max(list[1].(int64), 0) // -1, -2: no time
	if l.Fence, err = strconv.ParseInt(list[2].(string), 10, 64); err != nil {
		return l, err
	}
	if list[3].(int64) >= 0 {
		return l, errors.New("the counter expires")
	}
	switch owner, token, _ := strings.Cut(l.Owner, " "); {
	case !s.dialect.tokenInCounter:
		if n, err := strconv.ParseInt(token, 10, 64); err == nil && n > 0 && n <= quorum.MaxToken {
			l.Owner, l.Token = owner, n
		}
	case strings.Contains(l.Owner, ".") && !quorum.IsMinHoldID(l.Owner):
		l.Token = max(quorum.FirstOfBlock(l.Fence), 0)
	}
	var last int64
	l.Queue, l.Notes, last, err = s.parseQueue(list[4].([]any))
	if end := list[5].(int64); err == nil && last >= end && end >= 0 {
		err = fmt.Errorf("the queue expires at %d, and what is in it at %d", end, last)
	}
	return l, err
}

// noteOffset is the offset of a note's time in its score.
const noteOffset = 100_000_000_000_000

// parseQueue decodes the members of a queue and their scores: the places, the notes, and the time when the
// last of them expires.
func (s *Server) parseQueue(list []any) (q quorum.Queue, notes quorum.Notes, last int64, err error) {
	stamps, lapses := make(map[string]int64), make(map[string]int64)
	for pair := range slices.Chunk(list, 2) {
		score, err := strconv.ParseFloat(pair[1].(string), 64)
		if err != nil {
			return "", notes, 0, err
		}
		member := s.dialect.fromServer(pair[0].(string))
		if owner, ok := strings.CutPrefix(member, "!"); ok {
			lapses[owner] = int64(-score)
			last = max(last, int64(-score))
		} else if owner, ok := strings.CutPrefix(member, "~"); ok {
			notes = notes.With(owner, int64(-score)-noteOffset)
			last = max(last, int64(-score)-noteOffset)
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

// parseTime decodes a reply to TIME.
func parseTime(reply any) int64 {
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

// Outcome is the result of a step on the server.
type Outcome struct {
	Reply         any
	After         quorum.Lock
	Before, Until int64 // the server's clock before and after, in µs
}

// Run executes c on the server.
func (s *Server) Run(c Call, k Keys) (Outcome, error) {
	keys := c.scriptKeys(k)
	call := append([]string{"EVALSHA", s.dialect.scripts[c.Script].SHA, strconv.Itoa(len(keys))}, keys...)
	for _, arg := range c.argumentsWithMarker() {
		call = append(call, s.dialect.toServer(arg))
	}
	replies, err := s.Do([]string{"TIME"}, call, s.stateCommand(k), []string{"TIME"})
	if err != nil {
		return Outcome{}, err
	}
	fault, ok := replies[1].(resp.Error)
	if ok && fault != unadmittedReply && !strings.HasPrefix(string(fault), "CLOCK ") && string(fault) != quorum.ErrNoTokensLeft.Error() {
		return Outcome{}, fmt.Errorf("%s: %w", c.Script, fault)
	}
	if list, ok := replies[1].([]any); ok {
		if c.Script == "acquire" {
			list = list[:3] // the twin lacks further values of the format
		}
		for i, v := range list {
			if text, ok := v.(string); ok {
				list[i] = s.dialect.fromServer(text)
			}
		}
		replies[1] = list
	}
	o := Outcome{Reply: replies[1], Before: parseTime(replies[0]), Until: parseTime(replies[3])}
	o.After, err = s.parseState(replies[2])
	return o, err
}

// State reads the state of the lock on the server.
func (s *Server) State(k Keys) (quorum.Lock, error) {
	replies, err := s.Do(s.stateCommand(k))
	if err != nil {
		return quorum.Lock{}, err
	}
	return s.parseState(replies[0])
}

// Compare returns how o differs from the twin's outcome from before, or "" if the outcome at some moment
// within the step is the same. It also returns the messages of the twin.
func Compare(c Call, before quorum.Lock, o Outcome, hears func(string) bool) (messages []string, difference string) {
	var tried []string
	for _, now := range momentsOf(o) {
		for _, before := range expiryVariants(before, now) {
			l, reply, messages := c.Twin(before, now, hears)
			diff := differences(l, reply, now, o)
			if diff == "" {
				return messages, ""
			}
			tried = append(tried, diff)
		}
	}
	return nil, strings.Join(slices.Compact(tried), "\n")
}

// momentsOf returns the times within a step at which the twin may act differently: the ends of the step, and
// the start of each millisecond.
func momentsOf(o Outcome) []int64 {
	at := []int64{o.Before, o.Until}
	for ms := o.Before/1000 + 1; ms <= o.Until/1000; ms++ {
		at = append(at, ms*1000)
	}
	return at
}

// expiryVariants returns the states of l that the server may have at now. A read does not find a key past its
// expiry. Newer servers also delete keys by themselves, up to a millisecond early.
func expiryVariants(l quorum.Lock, now int64) []quorum.Lock {
	all := []quorum.Lock{l}
	if l.Until == now/1000 {
		l.Until--
		all = append(all, l)
	}
	return all
}

// differences compares the twin's outcome at now with the server's within the step. A script may read the
// clock several times, for each key that it sets and for a new counter: such times need only lie within the
// step.
func differences(l quorum.Lock, reply any, now int64, o Outcome) string {
	slack := o.Until/1000 - o.Before/1000
	end := o.Until / 1000
	var diffs []string
	note := func(what string, twin, server any) {
		diffs = append(diffs, fmt.Sprintf("%s: twin %v, server %v", what, twin, server))
	}
	// A key that expired between the script and the read of the state is no difference.
	gone := func(until int64, isGone bool) bool { return isGone && until <= end }
	when := func(what string, twin, server int64) {
		if abs(twin-server) > slack {
			note(what, twin, server)
		}
	}
	seeded := func(twin, server int64) bool { // a new counter, from the node's clock
		return twin == now && o.Before <= server && server <= o.Until
	}
	a := o.After
	if !gone(l.Until, a.Owner == "") {
		if l.Owner != a.Owner {
			note("owner", l.Owner, a.Owner)
		}
		if l.Token != a.Token && !seeded(quorum.LastOfBlock(l.Token), quorum.LastOfBlock(a.Token)) {
			note("token", l.Token, a.Token)
		}
		when("lock expires", l.Until, a.Until)
	}
	if l.Fence != a.Fence && !seeded(l.Fence, a.Fence) {
		note("counter", l.Fence, a.Fence)
	}
	// Entries that expire by the end of the step may exist or not.
	l, a = l.At(end*1000), a.At(end*1000)
	if !sameQueue(l.Queue, a.Queue, slack) {
		note("queue", showQueue(l.Queue, end), showQueue(a.Queue, end))
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

// sameReply compares replies; the remaining time in a list may differ by slack.
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

// sameQueue reports whether two queues are equal; the times at which places expire may differ by slack.
func sameQueue(a, b quorum.Queue, slack int64) bool {
	return slices.EqualFunc(slices.Collect(a.Places), slices.Collect(b.Places), func(a, b quorum.Place) bool {
		return a.Owner == b.Owner && a.Stamp == b.Stamp && abs(a.Until-b.Until) <= slack
	})
}

// showQueue formats a queue, with times relative to now, in ms.
func showQueue(q quorum.Queue, now int64) string {
	var b strings.Builder
	for p := range q.Places {
		fmt.Fprintf(&b, "[%s %d %+d]", p.Owner, p.Stamp, p.Until-now)
	}
	return b.String()
}

// Show formats a lock, with times relative to now, in ms.
func Show(l quorum.Lock, now int64) string {
	var notes strings.Builder
	for owner, until := range l.Notes.Owners {
		fmt.Fprintf(&notes, "[%s %+d]", owner, until-now/1000)
	}
	return fmt.Sprintf("owner %q with token %d %+d, counter %d, queue %s, taken from %s",
		l.Owner, l.Token, l.Until-now/1000, l.Fence, showQueue(l.Queue, now/1000), &notes)
}
