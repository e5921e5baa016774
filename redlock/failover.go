package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Failover says where the master of a node is found, if another server may take its
// place. Give either Sentinels and Master, or Servers.
type Failover struct {
	// Sentinels are the addresses, host:port, of Sentinels. They are asked at each new
	// connection, and every few seconds, which server is the master.
	Sentinels []string
	// Master is the name that the Sentinels have for it, such as mymaster.
	Master string
	// Username and Password are for Sentinels that ask for them. Those of the servers
	// are in Node or Options. TLS of Options is for both.
	Username, Password string
	// Servers, host:port, are a master and its replicas where no Sentinel looks after
	// them: the one whose role is master is the node.
	Servers []string
}

// check finds what is wrong with f, before anything is dialled.
func (f *Failover) check() error {
	addrs := slices.Concat(f.Sentinels, f.Servers)
	switch {
	case len(f.Sentinels) > 0 && len(f.Servers) > 0:
		return fmt.Errorf("%w: Failover has Sentinels and Servers; give one of them", driver.ErrInvalid)
	case len(addrs) == 0:
		return fmt.Errorf("%w: Failover has neither Sentinels nor Servers; give the addresses of one of them", driver.ErrInvalid)
	case len(f.Sentinels) > 0 && !nameOfMaster.MatchString(f.Master): // it is not shown, as it may be part of a password
		return fmt.Errorf("%w: the name of the master is missing, or has more than letters, digits, dots, dashes and underscores; "+
			"give the one that the Sentinels have, as in redis+sentinel://host:26379/mymaster", driver.ErrInvalid)
	}
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		switch {
		case err != nil || !dialable(cmp.Or(host, "localhost"), port):
			return fmt.Errorf("%w: address %d of %d in Failover is not host:port, such as localhost:26379", driver.ErrInvalid, i+1, len(addrs))
		case slices.Contains(addrs[:i], addr):
			return fmt.Errorf("%w: %s is listed twice in Failover; list each once", driver.ErrInvalid, addr)
		}
	}
	return nil
}

// nameOfMaster is what Sentinels take for a name.
var nameOfMaster = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// name is by which the node is known, whichever server is the master.
func (f *Failover) name() string {
	if len(f.Sentinels) > 0 {
		return f.Master + "@" + f.Sentinels[0]
	}
	return strings.Join(f.Servers, ",")
}

// moves says whether another server may become the node.
func (n *node) moves() bool { return n.failover != nil || n.d.cluster != nil }

var (
	errMoved   = errors.New("another server is the master now")
	errDemoted = errors.New("it is a replica: another server is about to be the master, or is it already")
)

// locate is the address of the server that is the node now.
func (g *gate) locate(ctx context.Context, n *node) (string, error) {
	if n.failover == nil {
		return n.addr, nil
	}
	servers := n.failover.Servers
	if len(servers) == 0 {
		var err error
		if servers, err = g.named(ctx, n.failover); err != nil || len(servers) == 1 {
			return strings.Join(servers, ""), err
		}
	}
	masters, errs := g.masters(ctx, n, servers)
	switch {
	case len(masters) == 0:
		return "", fmt.Errorf("none of its servers is a master: %w", together(errs))
	case len(masters) > 1 && len(n.failover.Servers) > 0:
		return "", advise(fmt.Errorf("%s are all masters", strings.Join(masters, " and ")), "make all but one replicas of that one (REPLICAOF)")
	}
	return masters[0], nil
}

// named are the servers that Sentinels name as the master: one, if more than half of the
// Sentinels agree, or else all that are named within half of the time, the one that is
// named most first. It needs no majority, as the server has to say itself that it is a
// master.
func (g *gate) named(ctx context.Context, f *Failover) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout/2)
	type answer struct {
		addr string
		err  error
	}
	answers := make(chan answer, len(f.Sentinels))
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	for _, sentinel := range f.Sentinels {
		all.Go(func() {
			addr, err := g.askSentinel(ctx, f, sentinel)
			answers <- answer{addr, err}
		})
	}
	votes := make(map[string]int)
	var addrs []string
	var errs []error
	for range f.Sentinels {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		if votes[a.addr]++; votes[a.addr] == 1 {
			addrs = append(addrs, a.addr)
		}
		if votes[a.addr] > len(f.Sentinels)/2 {
			return []string{a.addr}, nil
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no Sentinel names the master %s: %w", f.Master, together(errs))
	}
	slices.SortStableFunc(addrs, func(a, b string) int { return votes[b] - votes[a] })
	return addrs, nil
}

// askSentinel asks one Sentinel which server is the master.
func (g *gate) askSentinel(ctx context.Context, f *Failover, sentinel string) (string, error) {
	values, err := g.sentinel(ctx, f, sentinel, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", f.Master})
	if err != nil {
		return "", err
	}
	if values[0].Null {
		return "", fmt.Errorf("sentinel %s: %w", sentinel, unfit("SENTINEL MASTERS lists those that it knows", "it knows no master %s", f.Master))
	}
	list, _ := values[0].Decode().([]any)
	if len(list) != 2 {
		return "", fmt.Errorf("sentinel %s: %w", sentinel, unexpected(errShape))
	}
	host, _ := list[0].(string)
	port, _ := list[1].(string)
	if !dialable(host, port) {
		return "", fmt.Errorf("sentinel %s: %w", sentinel, unexpected(errors.New("it names no address")))
	}
	return net.JoinHostPort(host, port), nil
}

// sentinel sends one command to a Sentinel, over a connection of its own.
func (g *gate) sentinel(ctx context.Context, f *Failover, addr string, cmd []string) (_ []resp.Value, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sentinel %s: %w", addr, err)
		}
	}()
	l, err := g.connect(ctx, addr)
	if err != nil {
		return nil, mend(err, g.opts.TLS != nil)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })()
	cmds := append(auth(f.Username, f.Password), cmd)
	values, err := l.Do(cmds...)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer before the timeout: %w", ctx.Err())
	case err != nil:
		return nil, mend(err, g.opts.TLS != nil)
	}
	if err := firstError(cmds, values); err != nil {
		if strings.Contains(err.Error(), "unknown command") {
			return nil, unfit("give the addresses of Sentinels (port 26379, as a rule), or redis:// for one server", "it is no Sentinel")
		}
		if err = mend(err, g.opts.TLS != nil); errors.Is(err, driver.ErrAuth) {
			err = advise(err, "Sentinels have a user and password of their own: sentinel_username and sentinel_password (Failover)")
		}
		return nil, err
	}
	return values[len(cmds)-1:], nil
}

// masters are those of some servers that say that they are masters, in the order of addrs.
func (g *gate) masters(ctx context.Context, n *node, addrs []string) (found []string, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout/2)
	defer cancel()
	found, errs = make([]string, len(addrs)), make([]error, len(addrs))
	var all sync.WaitGroup
	for i, addr := range addrs {
		all.Go(func() {
			if err := g.isMaster(ctx, n, addr); err != nil {
				errs[i] = fmt.Errorf("%s: %w", addr, err)
			} else {
				found[i] = addr
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(found, func(s string) bool { return s == "" }), slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (g *gate) isMaster(ctx context.Context, n *node, addr string) error {
	l, err := g.connect(ctx, addr)
	if err != nil {
		return mend(err, g.opts.TLS != nil)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })()
	hello, err := g.login(ctx, n, addr, l)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer before the timeout: %w", ctx.Err())
	case err != nil:
		return mend(err, g.opts.TLS != nil)
	case hello["role"] != "master":
		return errDemoted
	}
	return nil
}

// together is one error for what is wrong with several servers. It is one that lasts if
// that is so for most of them.
func together(errs []error) error {
	lasts := 0
	for _, err := range errs {
		if lasting(err) {
			lasts++
		}
	}
	if lasts > len(errs)/2 {
		text := errs[0]
		for _, err := range errs[1:] {
			text = fmt.Errorf("%w; %w", text, err)
		}
		return text
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// verify hangs up once the server at the other end is the node no more. One that was
// demoted says so, also to a client that writes nothing; that another was promoted is
// what a Sentinel says, as a master that is cut off cannot know.
func (n *node) verify(l *link) {
	c := newCall([][]string{{"INFO", "replication"}})
	c.then = func() {
		if c.err != nil {
			return
		}
		text, ok := c.replies[0].(string)
		info := parseInfo(text)
		if since := promotion(info); ok && (info["role"] != "master" || since != "" && since != l.since) {
			l.hangUp(errMoved)
		}
	}
	l.send(entry{call: c, at: n.engine.Now()})
	f := n.failover
	if f == nil || len(f.Sentinels) == 0 {
		return
	}
	n.d.work.Go(func() {
		ctx, cancel := context.WithTimeout(n.d.ctx, n.d.opts.Timeout)
		defer cancel()
		g := n.d.gate
		if addr, err := g.askSentinel(ctx, f, f.Sentinels[rand.N(len(f.Sentinels))]); err != nil || addr == l.server {
			return
		}
		if addr, err := g.locate(ctx, n); err == nil && addr != l.server { // more than one of them says so
			l.hangUp(errMoved)
		}
	})
}

// promotion names the last time that a server was promoted; "" if it never was, or so long
// ago that it has forgotten it (repl-backlog-ttl, an hour as a rule).
func promotion(info map[string]string) string {
	if old := info["master_replid2"]; strings.Trim(old, "0") != "" {
		return strings.Clone(old) // which would keep all of INFO otherwise
	}
	return ""
}

// reign is the run of a server that fails over: it ends as well when the server is demoted,
// and gets the data of another.
func reign(run, since string) string {
	if since == "" {
		return run
	}
	return run + "/" + since
}

// failsOver stands in the marker of a node that fails over.
const failsOver = " failover"

// floorOf is the first token that a node may give by its marker; 0: any.
func floorOf(text string) (floor int64) {
	_, text, _ = strings.Cut(text, " floor=")
	text, _, _ = strings.Cut(text, " ")
	floor, _ = strconv.ParseInt(text, 10, 64)
	return floor
}

// errIsolable is a defect of a master that goes on without its replicas: INFO does not
// count those that keep up.
var errIsolable = advise(errors.New("min-replicas-to-write is 0: where it is cut off, it goes on granting locks beside the server that replaces it"),
	"set min-replicas-to-write 1 and min-replicas-max-lag 3 on each server (docs/your-redis.md)")

// at adds to an error which server it is about, where the node does not say it.
func (n *node) at(server string, err error) error {
	if n.failover != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	return err
}

// confirmMost is how long a replica may take to say that it has what its master did.
const confirmMost = time.Second

// confirm waits until a replica has what the server of l had done for lock before, and returns nil at once for a node that does
// not fail over. It asks over a connection of its own, because WAIT keeps all that comes after it on its connection waiting.
// What it writes comes after what was done, and is what it waits for.
func (n *node) confirm(ctx context.Context, l *link, lock engine.Lock) error {
	if !n.moves() {
		return nil
	}
	if l == nil || n.link.Load() != l {
		return errMoved
	}
	ctx, cancel := context.WithTimeout(ctx, 2*confirmMost)
	defer cancel()
	g := n.d.gate
	conn, err := g.connect(ctx, l.server)
	if err != nil {
		return mend(err, g.opts.TLS != nil)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := g.login(ctx, n, l.server, conn); err != nil {
		return err
	}
	name := n.engine.Client()
	if n.d.cluster != nil {
		name += "{" + wire.SlotTag(wire.Slot(lock.Key)) + "}"
	}
	probe := g.opts.probeKeys(name).Key
	values, err := ask(conn, []string{"INFO"}, []string{"SET", probe, "", "PX", "1000"}, []string{"DEL", probe}, []string{"WAIT", "1", millis(int64(confirmMost))})
	if err != nil {
		return err
	}
	info := parseInfo(string(values[0].Text))
	has, _ := values[3].Int()
	switch {
	case !marker{run: l.run}.in(reign(info["run_id"], promotion(info))):
		return errMoved
	case has > 0:
		return nil
	case info["connected_slaves"] != "0":
		return fmt.Errorf("no replica has answered within %v", confirmMost)
	case n.d.cluster != nil:
		return n.unreplicated(conn)
	}
	return errNoReplica
}

var errNoReplica = errors.New("it has no replica connected")

// unreplicated returns nil if the cluster knows no replica of the shard, so that none can take over.
func (n *node) unreplicated(conn *resp.Conn) error {
	values, err := ask(conn, []string{"CLUSTER", "MYID"}, []string{"CLUSTER", "SLOTS"})
	if err != nil {
		return err
	}
	ranges, _ := values[1].Decode().([]any)
	for _, r := range ranges {
		servers, _ := r.([]any)
		if len(servers) < 4 { // the first slot, the last, and the master
			continue
		}
		if master, _ := servers[2].([]any); len(master) > 2 && master[2] == values[0].Decode() {
			return errNoReplica
		}
	}
	return nil
}
