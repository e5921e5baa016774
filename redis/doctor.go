package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const (
	nameBytes      = 180                    // memory of a used name, as estimated in docs/operations.md
	slowCommand    = 250 * time.Millisecond // duration from which a command makes the node seem to stand still for others: pace.OverdueTime
	slowPeriod     = 24 * time.Hour         // time for which a slow command is reported
	maxCounterSkew = time.Minute            // difference of clocks from which no counter starts; see docs/wire.md, Scripts
)

// lockPermissions are the permissions that a user for locks needs.
const lockPermissions = "+auth +hello +client|setname +ping +info +time +script|load +evalsha " +
	"+get +set +del +exists +incrby +pexpire +pttl +zadd +zrangebyscore +zcard +zcount +zscore +zrem +publish +pubsub|numsub +subscribe +unsubscribe"

// Diagnose implements driver.Doctor. It makes the checks of the gate, and further checks that do not keep a
// node from voting.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	g := newGate(&d.opts, len(d.nodes))
	nodes, set := d.set.nodesToExamine(ctx)
	exams := make([]nodeExam, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		limit := time.Duration(quorum.RequestTimeout(int64(cmp.Or(ttl, driverkit.DoctorTTL))))
		exams[i] = nodeExam{Findings: driverkit.Findings{Node: n.addr}, g: g, n: n, limit: limit}
		all.Go(func() { exams[i].runChecks(ctx) })
	}
	all.Wait()
	if d.opts.NoQuarantine && (len(nodes) == 0 || g.rulesFor(nodes[0]).Guarded()) {
		set.addFault("quarantine", driver.VerdictFault, server.Advise(errors.New("quarantine=off lets a node vote that has forgotten what it granted"),
			"leave it out, once a set that is new has had its first lock"))
	}
	set.CheckFileModes(d.opts.secrets...)
	found := set.Found
	for _, e := range exams {
		found = append(found, e.Found...)
	}
	return found
}

// nodeExam is the examination of one node by Diagnose.
type nodeExam struct {
	driverkit.Findings
	g     *gate
	n     *node
	limit time.Duration // time limit of one request

	server string // the address
	l      *resp.Conn
	hello  map[string]string
	info   map[string]string
}

// runChecks makes one check after the other, until one gets no answer.
func (e *nodeExam) runChecks(ctx context.Context) {
	dialling, cancel := context.WithTimeout(ctx, e.g.opts.Timeout)
	var l *resp.Conn
	var err error
	if e.server, err = e.n.place.Locate(dialling); err == nil {
		l, err = e.n.net.Connect(dialling, e.server)
	}
	cancel()
	if err != nil {
		e.addFailure("reach", err)
		return
	}
	defer l.Close()
	e.l = l
	ctx, cancel = context.WithTimeout(ctx, pace.ExamNodeTime())
	defer cancel()
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"reach", e.checkLogin},
		{"round-trip", e.checkRoundTrip},
		{"info", e.readInfo},
		{"clients", e.checkClients},
		{"role", e.checkRole},
		{"failover", e.checkFailover},
		{"distinct", e.checkDistinct},
		{"version", e.checkVersion},
		{"clock", e.checkClock},
		{"eviction", e.checkEviction},
		{"memory", e.checkMemory},
		{"persistence", e.checkPersistence},
		{"set", e.checkSet},
		{"rights", e.checkPermissions},
		{"wake", e.checkWakeUps},
		{"tls", e.checkTLS},
		{"slowlog", e.checkSlowlog},
	} {
		if err := e.runCheck(ctx, check.run); err != nil {
			e.addFailure(check.name, err)
			return
		}
	}
}

// runCheck makes one check within its time limit.
func (e *nodeExam) runCheck(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, pace.ExamStepTime())
	defer cancel()
	defer context.AfterFunc(ctx, func() { e.l.SetDeadline(time.Unix(1, 0)) })()
	err := resp.CatchPanic(func() error { return check(ctx) })
	if ctx.Err() != nil {
		err = server.LateError(ctx, err)
	}
	return err
}

// addFault adds a fault with its fix.
func (e *nodeExam) addFault(check string, v driver.Verdict, err error) {
	text := strings.TrimPrefix(err.Error(), driver.ErrConfig.Error()+": ")
	mend := ""
	if a, ok := errors.AsType[*server.AdvisedError](err); ok {
		text, mend = strings.TrimSuffix(text, "; "+a.Fix), a.Fix
	}
	if server.LacksPermission(text) {
		mend = e.grantLine()
	}
	e.Add(check, v, text, mend)
}

// addFailure adds an error that ends the examination, or keeps the node from use.
func (e *nodeExam) addFailure(check string, err error) {
	if server.LacksPermission(err.Error()) {
		check = "rights"
	}
	e.addFault(check, driver.VerdictFault, server.AddAdvice(err, e.g.opts.TLS != nil))
}

// addHidden adds a check that the server does not permit, and the question that remains open.
func (e *nodeExam) addHidden(check string, err error, right, open string) {
	why := err.Error() + " (renamed, or hidden by the provider)"
	if server.LacksPermission(err.Error()) {
		why = "needs the right " + right
	}
	e.Add(check, driver.VerdictSkipped, why+open, "")
}

// grantLine returns the command that gives this client's user all permissions that it needs.
func (e *nodeExam) grantLine() string {
	user, _, err := e.n.net.Credentials(e.n.d.ctx, e.server)
	if err != nil {
		user = "USER"
	}
	keys := "~" + e.g.opts.Prefix + "*"
	if e.g.opts.Prefix == "" {
		keys = "~PATTERN-OF-THE-NAMES"
	}
	line := fmt.Sprintf("ACL SETUSER %s %s ~%s* &%s* %s", cmp.Or(user, "default"), keys, wire.Companion, wire.Wake, lockPermissions)
	line += e.g.opts.format().Permissions()
	return line + e.n.place.Permissions()
}

func (e *nodeExam) checkLogin(ctx context.Context) (err error) {
	if e.hello, err = e.n.place.Login(ctx, e.server, e.l); err == nil && e.n.place.Replaced() {
		e.OK("reach", "%s is the master, and answers", e.server)
	} else if err == nil {
		e.OK("reach", "answers")
	}
	return err
}

func (e *nodeExam) checkRoundTrip(context.Context) error {
	return e.CheckRoundTrip(e.limit, func() error {
		_, err := server.Ask(e.l, []string{"TIME"}) // a server that rejects writes rejects PING too
		return err
	})
}

func (e *nodeExam) readInfo(context.Context) error {
	values, err := server.Ask(e.l, []string{"INFO"})
	if err == nil {
		e.info = server.ParseInfo(string(values[0].Text))
	}
	return err
}

// infoNumber returns a field of INFO; 0 if it is missing.
func (e *nodeExam) infoNumber(field string) int64 {
	n, _ := strconv.ParseInt(e.info[field], 10, 64)
	return n
}

// checkClients compares the number of connections with the limit. The limit includes connections inside a
// cluster.
func (e *nodeExam) checkClients(context.Context) error {
	used, most := e.infoNumber("connected_clients")+e.infoNumber("cluster_connections"), e.infoNumber("maxclients")
	switch {
	case most == 0:
		e.Add("clients", driver.VerdictSkipped, "INFO does not say how many there may be", "")
	case used > most/10*9:
		e.addFault("clients", driver.VerdictWarning, server.Advise(
			fmt.Errorf("%d of %d connections are in use: one that comes after the last is refused", used, most),
			"end those that nobody needs (CLIENT LIST), or raise maxclients"))
	default:
		e.OK("clients", "%d of %d", used, most)
	}
	return nil
}

func (e *nodeExam) checkRole(context.Context) error {
	defects, err := e.n.place.Role(e.hello, e.info)
	if err != nil {
		return err
	}
	for check, err := range defects {
		e.addFault(check, driver.VerdictWarning, err)
	}
	if e.info["min_slaves_good_slaves"] == "0" {
		e.addFault("replicas", driver.VerdictFault, server.Advise(
			errors.New("no replica keeps up with it, and so it takes no locks (NOREPLICAS)"), server.FixReplicas))
	}
	if e.n.place.Replaced() {
		e.OK("role", "a master with %s replicas", e.info["connected_slaves"])
	} else {
		e.OK("role", "a master of its own")
	}
	return nil
}

func (e *nodeExam) checkDistinct(context.Context) error {
	run := e.info["run_id"]
	if err := e.n.place.Identify(e.l); err != nil {
		return err
	}
	if shard, ok := e.n.place.(*place.Shard); ok {
		e.OK("slots", "%d of %d", shard.Slots(), wire.Slots)
		return nil
	}
	if run == "" && !e.g.rulesFor(e.n).Guarded() {
		e.addFault("run", driver.VerdictWarning, errHidden)
	}
	if err := e.g.noteArrival(e.n.addr, run); err != nil || !e.g.rulesFor(e.n).Guarded() {
		return err
	}
	if run == "" {
		return errNoRun
	}
	e.OK("distinct", "listed once")
	return nil
}

// errHidden is the error for a server without a run_id, whose tokens may repeat.
var errHidden = server.Advise(errors.New("its INFO has no run_id: tokens begin at the clock on each new connection, and may fall "+
	"if a proxy keeps the connection while the server behind it restarts with older data"), "give Redis or Valkey themselves, not a proxy")

func (e *nodeExam) checkVersion(context.Context) error {
	name, number := "Redis", e.info["redis_version"]
	for fork, field := range map[string]string{"Valkey": "valkey_version", "Redict": "redict_version"} {
		if own := e.info[field]; own != "" {
			name, number = fork, own
		}
	}
	if server.IsTooOld(number) {
		return server.UnfitError("give Redis 6 or newer, or Valkey", "it is %s %s", name, number)
	}
	if !server.KeepsMessageOrder(e.hello, e.info) {
		name += " or what takes itself for it,"
	}
	e.OK("version", "%s %s", name, number)
	return nil
}

func (e *nodeExam) checkClock(context.Context) error {
	before := time.Now()
	values, err := server.Ask(e.l, []string{"TIME"})
	if err != nil {
		return err
	}
	rtt := time.Since(before)
	node, err := server.ParseTime(values[0])
	if err != nil {
		return err
	}
	off := time.UnixMicro(node).Sub(before.Add(rtt / 2))
	switch err := server.CheckClockSkew(node, before, rtt); {
	case err == nil:
		e.OK("clock", "%v from this machine's", off.Round(time.Millisecond))
	case off.Abs() > maxCounterSkew:
		e.addFault("clock", driver.VerdictFault, server.Advise(fmt.Errorf("its clock differs from this machine's by %v: it gives no lock on a name that is new to it",
			off.Round(time.Second)), "find out which of the two is wrong, and set it"))
	default:
		e.addFault("clock", driver.VerdictWarning, err)
	}
	return nil
}

func (e *nodeExam) checkEviction(context.Context) error {
	if err := server.CheckEviction(e.info); err != nil {
		v := driver.VerdictFault
		if e.g.opts.AllowEviction {
			v = driver.VerdictWarning
		}
		e.addFault("eviction", v, err)
	} else {
		e.OK("eviction", "%s", cmp.Or(e.info["maxmemory_policy"], "none"))
	}
	if n := e.infoNumber("evicted_keys"); n > 0 {
		e.addFault("evicted", driver.VerdictWarning, server.Advise(fmt.Errorf("it has thrown away %d keys since its start: locks may be among them", n),
			"set maxmemory-policy noeviction, give it memory, and then CONFIG RESETSTAT"))
	} else {
		e.OK("evicted", "no key since its start")
	}
	return nil
}

// checkMemory compares the free memory with the needs of as many names as there are now.
func (e *nodeExam) checkMemory(context.Context) error {
	used, most := e.infoNumber("used_memory"), e.infoNumber("maxmemory")
	what := "maxmemory"
	if most == 0 {
		most, what = e.infoNumber("total_system_memory"), "the machine's memory"
	}
	if most == 0 {
		e.Add("memory", driver.VerdictSkipped, "INFO does not say how much there is", "")
		return nil
	}
	names := expiringKeys(e.info["db"+strconv.Itoa(e.g.opts.DB)])
	left := max(most-used, 0)
	text := fmt.Sprintf("%s left of %s of %s, room for %d locks; %d keys with a TTL",
		formatSize(left), formatSize(most), what, left/nameBytes, names)
	switch mend := "raise maxmemory, or use fewer names: https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#memory"; {
	case left == 0:
		e.addFault("memory", driver.VerdictFault, server.Advise(errors.New("it is full and refuses new locks: "+text), mend))
	case left < most/10 || left < names*nameBytes:
		e.addFault("memory", driver.VerdictWarning, server.Advise(errors.New(text), mend))
	default:
		e.OK("memory", "%s", text)
	}
	return nil
}

// expiringKeys returns the number of keys with a TTL in a line of INFO keyspace.
func expiringKeys(text string) (n int64) {
	_, text, _ = strings.Cut(text, "expires=")
	text, _, _ = strings.Cut(text, ",")
	n, _ = strconv.ParseInt(text, 10, 64)
	return n
}

func formatSize(bytes int64) string {
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%d kB", bytes>>10)
	case bytes < 10<<30:
		return fmt.Sprintf("%d MB", bytes>>20)
	}
	return fmt.Sprintf("%d GB", bytes>>30)
}

// checkDisk finds a server that cannot save its data. Such a server rejects writes, and PING too.
func (e *nodeExam) checkDisk() error {
	values, err := e.l.Do([]string{"PING"})
	switch {
	case err != nil:
		return err
	case values[0].IsError() && server.IsMisconf(string(values[0].Text)):
		e.addFault("disk", driver.VerdictFault, server.Advise(
			errors.New("it could not save its data to disk, and takes no locks until it can (MISCONF)"), server.FixDisk))
	case e.info["rdb_last_bgsave_status"] == "err" || e.info["aof_last_write_status"] == "err":
		e.addFault("disk", driver.VerdictWarning, server.Advise(errors.New("it could not save its data to disk last"), "look at its log and its disk"))
	}
	return nil
}

// checkPersistence reports the effect of a restart on the locks.
func (e *nodeExam) checkPersistence(context.Context) error {
	if err := e.checkDisk(); err != nil {
		return err
	}
	rest := "a restart costs it a quarantine of " + member.Quarantine(e.g.opts.MaxTTL).String()
	if e.n.place.Replaced() {
		if !e.mayReturnEmpty() {
			e.OK("persistence", "%s, and a failover as well", rest)
		}
		return nil
	}
	forgets := "a crash or restart forgets who holds what, and a second holder may get in"
	if e.g.n > 1 {
		forgets = rest
	}
	kept, err := server.SyncsToDisk(e.l)
	if _, refused := errors.AsType[resp.Error](err); err != nil && !refused && !errors.Is(err, server.ErrHidden) {
		return err
	}
	if e.info["aof_enabled"] == "0" {
		err = nil // kept is known
	}
	switch {
	case err != nil:
		e.addHidden("persistence", err, "+config|get", "; if it does not write to disk before it answers, "+forgets)
	case kept:
		e.OK("persistence", "it writes to disk before it answers, and votes at once after a restart with its data")
	case e.g.n == 1:
		e.addFault("persistence", driver.VerdictWarning, server.Advise(
			errors.New("locks work, but it answers before it writes to disk, like every Redis with default settings: "+forgets),
			"set appendonly yes and appendfsync always, or use three nodes, or accept that and let the storage check tokens"))
	default:
		e.OK("persistence", "%s", rest)
	}
	if kept {
		if err := e.checkReplay(); err != nil {
			return err
		}
	}
	return e.checkRemembered(kept || err != nil)
}

// mayReturnEmpty reports whether a master of a cluster may restart empty before a replica takes over: it would
// look like a new master.
func (e *nodeExam) mayReturnEmpty() bool {
	file := e.info["aof_enabled"]
	switch {
	case e.n.place.Shard() == "" || file == "1":
		return false
	case file == "":
		e.Add("persistence", driver.VerdictSkipped, "INFO does not say whether it has an append-only file", "")
	default:
		e.addFault("persistence", driver.VerdictWarning, server.Advise(errors.New("if it restarts before a replica takes over, it has forgotten who holds what, "+
			"and a second holder may get in"), "set appendonly yes, or see to it that a master stays down until it is replaced"))
	}
	return true
}

// checkReplay finds a server that would skip the writes of scripts when it replays its append-only file.
func (e *nodeExam) checkReplay() error {
	read, err := server.ReplaysScripts(e.l, e.g.opts.probeKeys("doctor"))
	_, refused := errors.AsType[resp.Error](err)
	switch {
	case refused:
		e.addHidden("replay", err, "+acl|dryrun", "; without ACL DRYRUN, of Redis 7, one of several nodes sits out a quarantine after a restart")
	case err != nil:
		return err
	case read:
		e.OK("replay", "the append-only file can be read back")
	default:
		e.addFault("replay", driver.VerdictFault, server.Advise(errors.New("the default user may not run the commands in the append-only file: "+
			"after a restart the server skips them, and has forgotten locks"),
			"ACL SETUSER default ~* &* +@all, and in the configuration; that user may be off"))
	}
	return nil
}

// checkRemembered finds a node that would vote at once after a restart, although it does not keep its data any
// more.
func (e *nodeExam) checkRemembered(kept bool) error {
	values, err := server.Ask(e.l, []string{"GET", e.g.opts.setKey()})
	if err != nil {
		return err
	}
	text, _ := values[0].Decode().(string)
	if strings.Contains(text, " durable=") && !kept {
		e.addFault("durable", driver.VerdictFault, server.Advise(errors.New("it was admitted as a server that writes to disk before it answers, and no longer does: "+
			"if it is set to do so again before a restart, it votes although it has forgotten locks"),
			"set appendonly yes and appendfsync always, or DEL "+e.g.opts.setKey()+" on it and let it sit out its quarantine"))
	}
	return nil
}

// checkSet checks whether the node votes for clients with these options.
func (e *nodeExam) checkSet(context.Context) error {
	o, err := e.g.observeNode(e.l, e.n, e.markerRun())
	if err != nil {
		return err
	}
	rules := e.g.rulesFor(e.n)
	rules.ReadOnly = false
	v := e.g.judgeNode(rules, o, func() bool { return e.g.isDurable(e.l) })
	switch _, waits := errors.AsType[*member.QuarantineError](v.Err); {
	case waits:
		e.addFault("quarantine", driver.VerdictWarning, v.Err)
	case v.Err != nil:
		e.addFault("set", driver.VerdictFault, e.g.explainRefusal(v.Err))
	case strings.Contains(v.Write, " seen="):
		e.addFault("quarantine", driver.VerdictWarning, server.Advise(errors.New("it is new, or has lost its data: it votes "+
			member.Quarantine(e.g.opts.MaxTTL).String()+" after the first client that takes locks has seen it"),
			"start such a client, or wait for it; for a set that nobody has used before, take one lock with quarantine=off"))
	default:
		e.OK("set", "votes")
	}
	return e.checkSiblings()
}

// markerRun returns the run of the server in the form of the marker.
func (e *nodeExam) markerRun() string {
	if e.n.place.Replaced() {
		return member.Run(e.info["run_id"], server.PromotionID(e.info))
	}
	return e.info["run_id"]
}

// checkSiblings finds clients that lock the same names with other keys.
func (e *nodeExam) checkSiblings() error {
	marker, who := e.g.opts.format().SiblingMarker(e.g.opts.Prefix)
	if marker == "" || e.n.place.Shard() != "" {
		return nil
	}
	values, err := server.Ask(e.l, []string{"GET", marker})
	if err != nil {
		return err
	}
	if text, _ := values[0].Decode().(string); text != "" {
		e.addFault("siblings", driver.VerdictWarning, server.Advise(errors.New(siblingsWarning(who)),
			"give all clients the same; if that is meant so, or over, DEL "+marker+" once none is left"))
	}
	return nil
}

// checkPermissions tries the permissions and commands that the scripts need.
func (e *nodeExam) checkPermissions(ctx context.Context) error {
	var rep report
	err := e.g.tryPermissions(e.n, e.l, &rep.WakeFaults)
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil && server.LacksPermission(err.Error()):
		e.addFailure("rights", err)
	case err != nil:
		e.addFailure("scripts", err)
	default:
		e.OK("rights", "all that locks need")
		e.OK("scripts", "known and run")
	}
	return e.checkWakeable(ctx, rep)
}

// checkWakeable checks whether the server can wake waiters.
func (e *nodeExam) checkWakeable(ctx context.Context, rep report) error {
	_, err := rep.Subscribe(e.l, e.hello, e.n.engine.Client())
	switch why := cmp.Or(rep.Mute, rep.Deaf); {
	case err != nil || ctx.Err() != nil:
		return err
	case why != nil:
		e.addFault("wake", driver.VerdictWarning, server.Advise(fmt.Errorf("it cannot wake waiters, who poll: %w", why), "grant the permissions in https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#rights"))
	default:
		e.OK("wake", "waiters are woken")
	}
	return nil
}

// unhiddenCommandFix is the fix for a command that the server renamed or disabled. For a missing permission,
// the error itself names the fix.
const unhiddenCommandFix = "give a server that has it under its own name"

// checkWakeUps finds pattern subscriptions on a server that rejects PUBSUB NUMSUB: dead waiters look alive there.
func (e *nodeExam) checkWakeUps(context.Context) error {
	values, err := e.l.Do([]string{"PUBSUB", "NUMSUB", wire.Wake + "~probe"})
	switch patterns := e.infoNumber("pubsub_patterns"); {
	case err != nil:
		return err
	case values[0].IsError() && patterns > 0:
		e.addFault("patterns", driver.VerdictWarning, server.Advise(fmt.Errorf("%d patterns are subscribed to, and PUBSUB NUMSUB is refused: "+
			"each waiter that dies may cost the others a second: %w", patterns, values[0].Err()), unhiddenCommandFix))
	default:
		e.OK("patterns", "%d", patterns)
	}
	return nil
}

// checkTLS checks the encryption of the password, and the certificates.
func (e *nodeExam) checkTLS(ctx context.Context) error {
	_, password, _ := e.n.net.Credentials(ctx, e.server)
	e.CheckTLS(e.l.Conn, password != "", e.g.opts.TLS)
	return nil
}

// checkSlowlog finds commands that blocked the node for long. It does not show their arguments, which may be
// secret.
func (e *nodeExam) checkSlowlog(context.Context) error {
	values, err := e.l.Do([]string{"SLOWLOG", "GET", "128"}, []string{"TIME"})
	if err != nil {
		return err
	}
	if values[0].IsError() {
		e.addHidden("slowlog", values[0].Err(), "+slowlog|get", "")
		return nil
	}
	now, _ := server.ParseTime(values[1])
	count, worst, name := 0, time.Duration(0), ""
	list, _ := values[0].Decode().([]any)
	for _, entry := range list {
		at, took, command := parseSlowEntry(entry)
		if took < slowCommand || time.UnixMicro(now).Sub(time.Unix(at, 0)) > slowPeriod {
			continue
		}
		if count++; took > worst {
			worst, name = took, command
		}
	}
	if count > 0 {
		e.addFault("slowlog", driver.VerdictWarning, server.Advise(
			fmt.Errorf("commands of the last day that took longer than %v, and held up all locks meanwhile: %d; "+
				"the worst is %s with %v", slowCommand, count, name, worst.Round(time.Millisecond)),
			"look at SLOWLOG GET, keep such commands away, and then SLOWLOG RESET"))
	} else {
		e.OK("slowlog", "no command over %v in the last day", slowCommand)
	}
	return nil
}

// parseSlowEntry parses [id, time, µs, [command, …], …].
func parseSlowEntry(v any) (at int64, took time.Duration, command string) {
	entry, _ := v.([]any)
	if len(entry) < 4 {
		return 0, 0, ""
	}
	at, _ = entry[1].(int64)
	micros, _ := entry[2].(int64)
	if words, _ := entry[3].([]any); len(words) > 0 {
		command, _ = words[0].(string)
	}
	return at, time.Duration(micros) * time.Microsecond, strings.ToUpper(command)
}
