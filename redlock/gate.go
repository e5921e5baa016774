package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// restartMargin is added to MaxTTL: uptime is told in whole seconds, and may be
// one ahead.
const restartMargin = 2 * time.Second

// clockNoise is how far a node's clock may be from ours before it is reported.
const clockNoise = time.Second

// gate decides which nodes may vote. A TCP connection dies with its server
// process, so one check of each new connection covers every reply that comes
// over it.
type gate struct {
	opts *Options
	n    int // number of nodes

	mu   sync.Mutex // guards what follows
	runs map[string]run
	last map[string]sighting // by address
}

// run is a server process that was seen.
type run struct {
	addr  string
	votes time.Time // not before then
}

func (r run) twice() error {
	return fmt.Errorf("%w: it is the same server as %s, which would vote twice; list every server once", ErrConfig, r.addr)
}

// sighting is the last good look at an address.
type sighting struct {
	runID string
	at    time.Time
}

func newGate(opts *Options, n int) *gate {
	return &gate{opts: opts, n: n, runs: make(map[string]run), last: make(map[string]sighting)}
}

// report is what a check found that does not keep the node from voting.
type report struct {
	mute  error            // the node cannot wake waiters
	warns map[string]error // by what they are about
}

func (r *report) warn(about string, err error) {
	if r.warns == nil {
		r.warns = make(map[string]error)
	}
	r.warns[about] = err
}

// dial opens a connection to a node and checks the node over it.
func (g *gate) dial(ctx context.Context, n *node) (*line, report, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	l, err := g.connect(ctx, n.addr)
	if err != nil {
		return nil, report{}, mend(err, g.opts.TLS != nil)
	}
	unblock := context.AfterFunc(ctx, func() { l.conn.SetDeadline(time.Unix(1, 0)) })
	rep, err := g.check(ctx, n, l)
	if !unblock() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer before the timeout: %w", ctx.Err())
		}
		return nil, rep, mend(err, g.opts.TLS != nil)
	}
	return l, rep, nil
}

// keepAlive is for connections that carry nothing: a lost one shows by the pings.
var keepAlive = net.Dialer{KeepAlive: time.Second}

func (g *gate) connect(ctx context.Context, addr string) (*line, error) {
	plain, err := keepAlive.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &line{conn: plain}
	if cfg := g.opts.TLS; cfg != nil {
		if cfg.ServerName == "" {
			cfg = cfg.Clone()
			cfg.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secure := tls.Client(plain, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			plain.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		l.conn = secure
	}
	l.in = resp.NewReader(l.conn)
	return l, nil
}

// line is a raw connection on which commands are sent one batch after another.
type line struct {
	conn net.Conn
	in   *resp.Reader
}

// do sends the commands at once and returns their replies.
func (l *line) do(cmds ...[]string) ([]resp.Value, error) {
	var out []byte
	for _, c := range cmds {
		out = resp.AppendCommand(out, c...)
	}
	if _, err := l.conn.Write(out); err != nil {
		return nil, err
	}
	values := make([]resp.Value, len(cmds))
	for i := range values {
		v, err := l.in.ReadValue()
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}

// firstError is the first error reply, with the command it answers.
func firstError(cmds [][]string, values []resp.Value) error {
	for i, v := range values {
		if v.IsError() {
			return fmt.Errorf("%s: %w", cmds[i][0], v.Decode().(resp.Error))
		}
	}
	return nil
}

// check looks whether the server at the other end may vote.
func (g *gate) check(ctx context.Context, n *node, l *line) (report, error) {
	if err := g.login(ctx, n, l); err != nil {
		return report{}, err
	}
	before := time.Now()
	cmds := [][]string{{"INFO"}, {"TIME"}}
	values, err := l.do(cmds...)
	if err == nil {
		err = firstError(cmds, values)
	}
	if err != nil {
		return report{}, err
	}
	rtt := time.Since(before)
	info := parseInfo(string(values[0].Text))
	var rep report
	if err := g.fit(info, &rep); err != nil {
		return rep, err
	}
	skew(values[1], before, rtt, &rep)
	if err := g.admit(n.addr, info, l); err != nil {
		return rep, err
	}
	if err := g.member(l); err != nil {
		return rep, err
	}
	return rep, g.prepare(n, l, &rep)
}

// login gives the credentials, and sets what a connection is told only once.
func (g *gate) login(ctx context.Context, n *node, l *line) error {
	user, pass, err := n.credentials(ctx)
	if err != nil {
		return fmt.Errorf("%w: credentials: %w", ErrAuth, err)
	}
	var cmds [][]string
	switch {
	case user != "":
		cmds = append(cmds, []string{"AUTH", user, pass})
	case pass != "":
		cmds = append(cmds, []string{"AUTH", pass})
	}
	cmds = append(cmds, []string{"HELLO", "3", "SETNAME", g.opts.ClientName}) // 3: wake-ups come between replies
	if g.opts.DB != 0 {
		cmds = append(cmds, []string{"SELECT", strconv.Itoa(g.opts.DB)})
	}
	values, err := l.do(cmds...)
	if err != nil {
		return err
	}
	return firstError(cmds, values)
}

// parseInfo splits the reply to INFO into its fields.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			info[k] = v
		}
	}
	return info
}

// fit refuses servers that would lose locks.
func (g *gate) fit(info map[string]string, rep *report) error {
	switch {
	case info["redis_mode"] == "cluster":
		return fmt.Errorf("%w: it is part of a Redis Cluster, whose failover loses locks; give independent servers", ErrConfig)
	case info["redis_mode"] == "sentinel":
		return fmt.Errorf("%w: it is a Sentinel; give the address of a Redis server", ErrConfig)
	case info["role"] != "" && info["role"] != "master":
		return fmt.Errorf("%w: it is a replica of %s:%s; give the address of a master that replicates nothing",
			ErrConfig, info["master_host"], info["master_port"])
	}
	if p := info["maxmemory_policy"]; p != "" && p != "noeviction" {
		err := fmt.Errorf("%w: maxmemory-policy is %s, which can evict locks; set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)", ErrConfig, p)
		if !g.opts.AllowEviction {
			return err
		}
		rep.warn("eviction", err)
	}
	return nil
}

// skew reports a clock that differs from ours.
func skew(reply resp.Value, before time.Time, rtt time.Duration, rep *report) {
	list, _ := reply.Decode().([]any)
	if len(list) != 2 {
		return
	}
	sec, _ := list[0].(string)
	s, err := strconv.ParseInt(sec, 10, 64)
	if err != nil {
		return
	}
	micro, _ := list[1].(string)
	us, _ := strconv.ParseInt(micro, 10, 64)
	off := time.UnixMicro(s*1_000_000 + us).Sub(before.Add(rtt / 2))
	if off.Abs() > clockNoise+rtt {
		rep.warn("clock", fmt.Errorf("its clock differs from this machine's by %v; synchronise both (fencing after a loss of data relies on clocks)", off.Round(time.Millisecond)))
	}
}

// admit enforces the delayed restart: a server that has just started may have
// forgotten locks, and does not vote before the longest of them is over. (The
// Redlock page, "Performance, crash recovery and fsync".)
func (g *gate) admit(addr string, info map[string]string, l *line) error {
	id := strings.Clone(info["run_id"]) // which would keep all of INFO otherwise
	if id == "" {
		return nil
	}
	seconds, _ := strconv.ParseInt(info["uptime_in_seconds"], 10, 64)
	now := time.Now()

	g.mu.Lock()
	seen, known := g.runs[id]
	last := g.last[addr]
	g.mu.Unlock()
	if known && seen.addr != addr {
		return seen.twice()
	}
	age := time.Duration(seconds) * time.Second
	if last.runID != "" && last.runID != id {
		// We know better than its clock that it has been restarted since.
		age = min(age, now.Sub(last.at))
	}
	if !known {
		seen = run{addr: addr, votes: now}
		wait := g.opts.MaxTTL + restartMargin - age
		if g.quarantine() && wait > 0 && !durable(l) {
			seen.votes = now.Add(wait)
		}
	}
	g.mu.Lock()
	if first, ok := g.runs[id]; ok && first.addr != addr { // both were dialled at once
		g.mu.Unlock()
		return first.twice()
	}
	g.runs[id] = seen
	g.last[addr] = sighting{runID: id, at: now}
	g.mu.Unlock()
	if wait := seen.votes.Sub(now); wait > 0 {
		return &quarantineError{age: age, wait: wait}
	}
	return nil
}

func (g *gate) quarantine() bool { return g.n > 1 && !g.opts.NoQuarantine }

// seen notes that addr has just answered.
func (g *gate) seen(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.last[addr]; s.runID != "" {
		s.at = time.Now()
		g.last[addr] = s
	}
}

// durable says whether the server writes everything to disk before it answers.
func durable(l *line) bool {
	values, err := l.do([]string{"CONFIG", "GET", "appendonly"}, []string{"CONFIG", "GET", "appendfsync"})
	if err != nil {
		return false
	}
	return setting(values[0]) == "yes" && setting(values[1]) == "always"
}

// setting is the value in a reply to CONFIG GET.
func setting(v resp.Value) string {
	if list, _ := v.Decode().([]any); len(list) == 2 {
		s, _ := list[1].(string)
		return s
	}
	return ""
}

// quarantineError says that a node restarted too recently to vote.
type quarantineError struct{ age, wait time.Duration }

func (e *quarantineError) Error() string {
	return fmt.Sprintf("restarted %v ago, votes in %v (a server that lost its memory must not vote while old locks may stand; quarantine can be turned off for a set that nobody used before)",
		e.age.Round(time.Second), e.wait.Round(time.Second))
}

// member sees to it that all clients of a set agree on its size and MaxTTL.
func (g *gate) member(l *line) error {
	want := fmt.Sprintf("n=%d maxttl=%d", g.n, g.opts.MaxTTL.Milliseconds())
	cmds := [][]string{{"SET", wire.SetKey, want, "NX"}, {"GET", wire.SetKey}}
	values, err := l.do(cmds...)
	if err != nil {
		return err
	}
	if err := firstError(cmds[1:], values[1:]); err != nil {
		return err
	}
	got, _ := values[1].Decode().(string)
	if got == want || got == "" { // "": its memory is full, and so nobody's vote counts yet
		return nil
	}
	return fmt.Errorf("%w: it belongs to a set opened with %q, and this client has %q; give all clients the same nodes and MaxTTL (if the set was changed on purpose: DEL %s on every node once no old client is left)",
		ErrConfig, got, want, wire.SetKey)
}

// prepare loads the scripts and tries the rights they need.
func (g *gate) prepare(n *node, l *line, rep *report) error {
	cmds := loads()
	lock := g.opts.keys("~probe:" + n.engine.Client())
	cmds = append(cmds, []string{
		"EVALSHA", wire.Probe.SHA, "3", lock.Key, lock.Fence, lock.Queue, wire.Wake + n.engine.Client(),
	})
	values, err := l.do(cmds...)
	if err != nil {
		return err
	}
	if err := firstError(cmds, values); err != nil {
		return err
	}
	refused, _ := values[len(values)-1].Decode().([]any)
	for i, r := range refused {
		text, _ := r.(string)
		switch {
		case text == "":
		case i == 0:
			rep.mute = errors.New(text)
		default:
			return fmt.Errorf("%w: %w: %s; grant the rights in docs/operations.md", ErrConfig, ErrAuth, text)
		}
	}
	return nil
}

// mend adds to an error what to do about it, where the server's text leaves that
// open. secure says whether TLS was used.
func mend(err error, secure bool) error {
	text := err.Error()
	reset := errors.Is(err, syscall.ECONNRESET)
	switch {
	case secure && (reset || strings.Contains(text, "certificate required") || strings.Contains(text, "bad certificate")):
		return fmt.Errorf("%w: it may want a client certificate; give one in TLS, or cert and key in the URL (docs/operations.md)", err)
	case secure && strings.Contains(text, "TLS handshake") && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: if it does not speak TLS on this port, use redis:// or its TLS port", err)
	case !secure && reset:
		return fmt.Errorf("%w: if it speaks TLS on this port, use rediss:// or tls=true", err)
	case errors.Is(err, ErrConfig), errors.Is(err, ErrAuth):
		return err
	case strings.Contains(text, "NOAUTH"):
		return fmt.Errorf("%w: %w: it asks for a password; give Username and Password", ErrConfig, errAuth(err))
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return fmt.Errorf("%w: %w: check Username and Password", ErrConfig, errAuth(err))
	case strings.HasPrefix(text, "HELLO: ") && strings.Contains(text, "unknown command"):
		return fmt.Errorf("%w: %w: it is older than Redis 6; give a newer server", ErrConfig, err)
	case strings.Contains(text, "NOPERM"):
		return fmt.Errorf("%w: %w: grant the rights in docs/operations.md", ErrConfig, errAuth(err))
	case strings.Contains(text, "DB index is out of range"):
		return fmt.Errorf("%w: %w: choose another DB", ErrConfig, err)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%w: %w: it does not speak TLS on this port; use redis:// or its TLS port", ErrConfig, err)
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return fmt.Errorf("%w: %w: give the CA that signed its certificate", ErrConfig, err)
	}
	return err
}

func errAuth(err error) error { return fmt.Errorf("%w: %w", ErrAuth, err) }

// fatal says whether asking a server again is pointless until somebody mends it.
// That is so for every error it answers with but those that pass by themselves.
func fatal(err error) bool {
	for _, prefix := range []string{"LOADING", "BUSY", "TRYAGAIN", "NOSCRIPT", "CLOCK"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return false
		}
	}
	return true
}
