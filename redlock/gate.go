package redlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// clockNoise is how far a node's clock may be from ours before it is reported.
const clockNoise = time.Second

// gate decides which nodes may vote. A TCP connection dies with its server
// process, so one check of each new connection covers every reply that comes
// over it, but for what is done to the data of a server that goes on.
type gate struct {
	opts  *Options
	n     int // number of nodes
	start time.Time

	mu       sync.Mutex          // guards what follows
	present  map[string]string   // by address: the run of the server that it is connected to
	watches  map[string]watch    // by address
	admitted map[string][]string // by address: the runs that were seen admitted, in that order
}

func newGate(opts *Options, n int) *gate {
	return &gate{
		opts: opts, n: n, start: time.Now(),
		present: make(map[string]string), watches: make(map[string]watch), admitted: make(map[string][]string),
	}
}

// arrive notes that addr is connected to a server, and refuses a second vote of it.
func (g *gate) arrive(addr, run string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for other, r := range g.present {
		if r == run && other != addr && run != "" {
			return fmt.Errorf("%w: it is the same server as %s, which would vote twice; list every server once", ErrConfig, other)
		}
	}
	g.present[addr] = run
	return nil
}

// leave notes that addr is connected no longer.
func (g *gate) leave(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.present, addr)
}

// report is what a check found that does not keep the node from voting.
type report struct {
	member  member           // by which the node is known again
	mute    error            // the node cannot wake waiters
	ordered bool             // wake-ups come in their place among the replies
	warns   map[string]error // by what they are about
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
		g.leave(n.addr)
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
func (g *gate) check(ctx context.Context, n *node, l *line) (rep report, err error) {
	hello, err := g.login(ctx, n, l)
	if err != nil {
		return rep, err
	}
	before := time.Now()
	cmds := [][]string{{"INFO"}, {"TIME"}}
	values, err := l.do(cmds...)
	if err != nil {
		return rep, err
	}
	rtt := time.Since(before)
	info := parseInfo(string(values[0].Text))
	if err := g.fit(hello, info, &rep); err != nil {
		return rep, err // which says more than what is missing in such a server
	}
	if err := firstError(cmds, values); err != nil {
		return rep, err
	}
	node, err := parseTime(values[1])
	if err != nil {
		return rep, err
	}
	skew(node, before, rtt, &rep)
	run := strings.Clone(info["run_id"]) // which would keep all of INFO otherwise
	if g.n > 1 && run == "" {
		return rep, fmt.Errorf("%w: its INFO has no run_id, by which a restart is noticed; give Redis or Valkey themselves, not a proxy, or use this server alone", ErrConfig)
	}
	if err := g.arrive(n.addr, run); err != nil {
		return rep, err
	}
	if g.opts.ReadOnly {
		return rep, g.look(l, n.addr, run)
	}
	marker, err := g.admit(l, n.addr, run, rep.warns["promoted"] != nil) // first, as who is in quarantine comes again each second
	if err != nil && !lacksRight(err.Error()) {
		return rep, err
	}
	if err := g.prepare(n, l, &rep); err != nil {
		return rep, err // it names each right that is missing
	}
	if err != nil {
		return rep, err
	}
	if g.n > 1 {
		rep.member = member{set: g.opts.setKey(), marker: marker}
	}
	rep.ordered = ordered(hello, info)
	return rep, g.subscribable(n, l, hello, &rep)
}

// login gives the credentials, and sets what a connection is told only once.
func (g *gate) login(ctx context.Context, n *node, l *line) (hello map[string]string, err error) {
	user, pass, err := n.credentials(ctx)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err) // whoever gives them may be down for a while
	}
	var cmds [][]string
	switch {
	case user != "":
		cmds = append(cmds, []string{"AUTH", user, pass})
	case pass != "":
		cmds = append(cmds, []string{"AUTH", pass})
	}
	greets := len(cmds)
	cmds = append(cmds, []string{"HELLO", "3", "SETNAME", g.opts.ClientName}) // 3: wake-ups come between replies
	if g.opts.DB != 0 {
		cmds = append(cmds, []string{"SELECT", strconv.Itoa(g.opts.DB)})
	}
	values, err := l.do(cmds...)
	if err != nil {
		return nil, err
	}
	hello = parseHello(values[greets])
	if err := strange(hello["mode"], "", nil); err != nil {
		return nil, err // which says more than what is missing in such a server
	}
	return hello, firstError(cmds, values)
}

// parseHello reads the map that HELLO answers with.
func parseHello(v resp.Value) map[string]string {
	hello := make(map[string]string)
	for i := 0; i+1 < len(v.Elems); i += 2 {
		hello[string(v.Elems[i].Text)] = string(v.Elems[i+1].Text)
	}
	return hello
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

// strange refuses what is no single master. info may say of whom it is a replica.
func strange(mode, role string, info map[string]string) error {
	switch {
	case mode == "cluster" || info["cluster_enabled"] == "1":
		return fmt.Errorf("%w: it is part of a Redis Cluster, whose failover loses locks; give independent servers", ErrConfig)
	case mode == "sentinel":
		return fmt.Errorf("%w: it is a Sentinel; give the address of a Redis server", ErrConfig)
	case role == "replica" || role == "slave":
		of := ""
		if info["master_host"] != "" {
			of = " of " + info["master_host"] + ":" + info["master_port"]
		}
		return fmt.Errorf("%w: %w%s; give the address of a master that replicates nothing", ErrConfig, errReplica, of)
	}
	return nil
}

// fit refuses servers that would lose locks, and warns of those that may.
func (g *gate) fit(hello, info map[string]string, rep *report) error {
	mode := cmp.Or(info["redis_mode"], info["server_mode"], hello["mode"]) // Valkey has the second
	if err := strange(mode, cmp.Or(info["role"], hello["role"]), info); err != nil {
		return err
	}
	if n := info["connected_slaves"]; n != "" && n != "0" {
		rep.warn("replicas", fmt.Errorf("it has %s connected replicas: if one takes over, locks are lost; nodes need none", n))
	}
	if old := info["master_replid2"]; strings.Trim(old, "0") != "" {
		rep.warn("promoted", errors.New("it was a replica before: locks that its master had granted last may be lost"))
	}
	if p := info["maxmemory_policy"]; p != "" && p != "noeviction" {
		err := fmt.Errorf("%w: maxmemory-policy is %s, which can evict locks; set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf; with a managed service, in its settings), or accept that with eviction=allow (AllowEviction)", ErrConfig, p)
		if !g.opts.AllowEviction {
			return err
		}
		rep.warn("eviction", err)
	}
	return nil
}

// skew reports a clock that differs from ours.
func skew(node int64, before time.Time, rtt time.Duration, rep *report) {
	off := time.UnixMicro(node).Sub(before.Add(rtt / 2))
	if off.Abs() > clockNoise+rtt {
		rep.warn("clock", fmt.Errorf("its clock differs from this machine's by %v; synchronise both (fencing after a loss of data relies on clocks)", off.Round(time.Millisecond)))
	}
}

// prepare loads the scripts and tries the rights they need.
func (g *gate) prepare(n *node, l *line, rep *report) error {
	cmds := loads()
	lock := g.opts.probeKeys(n.engine.Client())
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
			return errors.New(text)
		}
	}
	return nil
}

// subscribable finds out whether a connection that is subscribed still carries
// requests, and the confirmations in their place among the replies. Where it does
// not, waiters poll. The channel is one on which nobody sends.
func (g *gate) subscribable(n *node, l *line, hello map[string]string, rep *report) error {
	if p := hello["proto"]; p != "3" {
		rep.mute = cmp.Or(rep.mute, fmt.Errorf("it answers HELLO 3 with protocol %q, and without 3 a connection that is subscribed carries no requests", p))
	}
	if rep.mute != nil {
		return nil
	}
	channel := wire.Wake + "~probe:" + n.engine.Client()
	values, err := l.do([]string{"SUBSCRIBE", channel}, []string{"TIME"}, []string{"UNSUBSCRIBE", channel})
	switch {
	case err != nil:
		return err
	case values[0].IsError(): // the first wait finds out, and asks again from time to time
	case values[1].IsError():
		rep.mute = fmt.Errorf("a connection that is subscribed carries no requests: %w", serverError(values[1]))
	case values[0].Kind != '>':
		rep.mute = errors.New("it does not confirm a subscription in its place among the replies")
	}
	return nil
}

// ordered says whether a server is known to send messages in their place among the
// replies. RESP3 does not promise that; Redis and Valkey do it, with one thread for all
// commands. Others that call themselves so are told by their INFO.
func ordered(hello, info map[string]string) bool {
	if hello["server"] != "redis" && hello["server"] != "valkey" || info["gcc_version"] == "" {
		return false
	}
	for _, other := range []string{"dragonfly_version", "mvcc_depth", "garnet_version", "kvrocks_version"} { // the second is KeyDB
		if info[other] != "" {
			return false
		}
	}
	return true
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
		return fmt.Errorf("%w: it asks for a password; give Username and Password", errAuth(err))
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return fmt.Errorf("%w: check Username and Password", errAuth(err))
	case strings.HasPrefix(text, "HELLO: ") && strings.Contains(text, "unknown command"):
		return fmt.Errorf("%w: %w: it is older than Redis 6; give a newer server", ErrConfig, err)
	case strings.Contains(text, "NOPROTO"):
		return fmt.Errorf("%w: %w: it does not speak RESP3; give Redis 6 or newer, or Valkey, without a proxy that speaks RESP2 only", ErrConfig, err)
	case strings.Contains(text, "nknown") && strings.Contains(text, "command"):
		return fmt.Errorf("%w: %w: the command was renamed, or a proxy does not know it, and locks need it; give a server that has it under its own name", ErrConfig, err)
	case lacksRight(text):
		return fmt.Errorf("%w: grant the rights in docs/operations.md", errAuth(err))
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

// refusals are how servers say that a right is missing: of Redis 6 and 7.0 in scripts,
// of all outside of scripts, and of newer ones in scripts.
var refusals = []string{"The user executing the script", "NOPERM", "ACL failure"}

func lacksRight(text string) bool {
	return slices.ContainsFunc(refusals, func(r string) bool { return strings.Contains(text, r) })
}

func errAuth(err error) error { return fmt.Errorf("%w: %w", ErrAuth, err) }

// errReplica is no reason to end a wait: after a failover the address may lead to the
// old master for a while.
var errReplica = errors.New("it is a replica")

// lasting says whether what keeps a node down stands until somebody mends it.
func lasting(err error) bool {
	return (errors.Is(err, ErrConfig) || errors.Is(err, ErrAuth)) && !errors.Is(err, errReplica)
}

// code is the first word of an error reply, by which servers say what kind it is. A
// script of Redis 6 hides that of a command within its own.
func code(text []byte) string {
	word, rest, _ := strings.Cut(string(text), " ")
	if word == "ERR" && strings.HasPrefix(rest, "Error running script") {
		if _, inner, ok := strings.Cut(rest, ": -"); ok {
			word, _, _ = strings.Cut(inner, " ")
		}
	}
	return word
}

// fatal says whether a server that refuses with code will do so until somebody mends
// rights, credentials, a key of another type where the queue or the counter should be, or
// a command or script that it does not know as it should. The others pass: it loads its data, is busy, lacks replicas or memory for the time being,
// cannot save, or is a replica now.
func fatal(code string) bool {
	return slices.Contains([]string{"ERR", "NOPERM", "NOAUTH", "WRONGPASS", "DENIED", "WRONGTYPE"}, code)
}

// outdated is why what was found out at the start of a connection holds no more, if v
// says so: the server is a replica now, or no longer in the run in which it was admitted.
func outdated(v resp.Value) error {
	if !v.IsError() {
		return nil
	}
	switch code(v.Text) {
	case "UNADMITTED":
		return errForgot
	case "READONLY", "MASTERDOWN":
		return serverError(v)
	}
	return nil
}
