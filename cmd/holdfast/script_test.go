//go:build linux

package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
)

// maxWait bounds the wait for an expected event.
func maxWait() time.Duration { return pace.Scale(90 * time.Second) }

func TestMain(m *testing.M) {
	testscript.Main(cleaningMain{m}, map[string]func(){"holdfast": runPaced, "launch": launchJob, "tick": writeTicks})
}

// runPaced runs the command at the pace of the tests.
func runPaced() {
	tempo.Adopt()
	main()
}

// monotonicNow returns CLOCK_MONOTONIC in ns, which all processes of a machine share.
func monotonicNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// cleaningMain removes what the tests have built, once they are over.
type cleaningMain struct{ *testing.M }

// Run implements testscript.TestingM.
func (m cleaningMain) Run() int {
	flag.Parse()
	flag.Set("test.parallel", "6") // more than processors, because most tests wait
	if testing.Short() {
		*increments, *waiters, *rounds = 30, 10, 2
	}
	// Under nohup the processes that the tests start would ignore SIGHUP.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	defer func() {
		if dir, ok := programsFolder.Load().(string); ok {
			os.RemoveAll(dir)
		}
	}()
	return leaktest.Run(m.M)
}

// launchJob runs holdfast as a job of its own, as an interactive shell does:
//
//	launch NAME ARGS...
//
// It leaves NAME.pid, NAME.out, NAME.log and, in the end, NAME.code. The
// group is not orphaned, so it can be stopped.
func launchJob() {
	name := os.Args[1]
	cmd := exec.Command("holdfast", os.Args[2:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err1 := os.Create(name + ".out")
	log, err2 := os.Create(name + ".log")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, log
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		panic(err)
	}
	note := func(file string, n int) {
		if err := os.WriteFile(name+file, fmt.Appendln(nil, n), 0o600); err != nil {
			panic(err)
		}
	}
	note(".pid", cmd.Process.Pid)
	cmd.Wait() // cmd.ProcessState has the outcome
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		note(".code", 128+int(status.Signal()))
		return
	}
	note(".code", status.ExitStatus())
}

// writeTicks writes NAME.child, its process id, and a line into NAME.tick again and again:
//
//	tick NAME
//
// It starts no process, as a loop of a shell would: a child that is stopped between vfork and exec
// leaves the shell waiting where no signal can stop it.
func writeTicks() {
	name := os.Args[1]
	ticks, err := os.Create(name + ".tick")
	if err == nil {
		err = os.WriteFile(name+".child", fmt.Appendln(nil, os.Getpid()), 0o600)
	}
	for ; err == nil; time.Sleep(10 * time.Millisecond) {
		_, err = ticks.WriteString("tick\n")
	}
	panic(err)
}

// TestScripts runs the scripts of testdata/script, each against servers of its
// own. In addition to the commands of testscript they have:
//
//	redis up N [password]     starts N servers and sets HOLDFAST_BACKEND
//	redis kill|restart|pause|resume I does that to the I-th, from 1
//	redis empty               fails if a lock or a queue is left on any server
//	redis held NAME           waits until the lock is held
//	redis do I COMMAND...     sends the command to the I-th, from 1
//	postgres up               starts a PostgreSQL server and sets HOLDFAST_BACKEND
//	mariadb up                starts a MariaDB server and sets HOLDFAST_BACKEND
//	etcd up                   starts three members of etcd and sets HOLDFAST_BACKEND
//	etcd kill                 kills one of them
//	zk up|kill                does that with ZooKeeper
//	exits CODE CMD ARGS...    runs a command and wants that exit code
//	await FILE [TEXT]         waits until the file is there, and has the text
//	ended NAME CODE           waits for the holdfast that launch NAME started, and wants that code
//	send SIGNAL FILE          sends a signal to the process whose id the file has
//	gone FILE                 waits until none of the processes lives whose ids the file has
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Values["servers"] = &servers{}
			env.Setenv("USER", "tester")
			env.Vars = append(env.Vars, tempo.Env())
			env.Setenv("ODD", "lock:a\x01b")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"redis": redisCommand, "postgres": postgresCmd, "mariadb": mariadbCmd, "etcd": etcdCmd, "zk": zkCmd,
			"exits": cmdExits, "await": cmdAwait, "ended": cmdEnded, "send": cmdSend, "gone": cmdGone,
		},
		Condition: func(name string) (bool, error) {
			if name != "mounts" { // mounts: this user may mount in its own namespace
				return false, errors.New("unknown condition " + name)
			}
			return exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").Run() == nil, nil
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// postgresCmd starts a server without tables for locks.
func postgresCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "up" {
		ts.Fatalf("usage: postgres up")
	}
	server, err := pgproc.Start(context.Background())
	ts.Check(err)
	ts.Defer(func() { server.Stop() })
	dir, _, _ := strings.Cut(strings.TrimPrefix(server.DSN(), "host="), " ")
	ts.Setenv("HOLDFAST_BACKEND", "postgres://holdfast:secret@/postgres?host="+url.QueryEscape(dir))
}

// mariadbCmd starts a server without tables for locks.
func mariadbCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "up" {
		ts.Fatalf("usage: mariadb up")
	}
	server, err := mariaproc.Start(context.Background())
	ts.Check(err)
	ts.Defer(func() { server.Stop() })
	db, err := sql.Open("mysql", "root@unix("+server.Socket()+")/")
	ts.Check(err)
	defer db.Close()
	_, err = db.Exec("CREATE DATABASE app")
	ts.Check(err)
	ts.Setenv("HOLDFAST_BACKEND", "mysql+unix://root:secret@"+server.Socket()+"?db=app")
}

// etcdCmd starts a cluster, or kills its first member.
func etcdCmd(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value("servers").(*servers)
	switch {
	case neg || len(args) != 1:
		ts.Fatalf("usage: etcd up|kill")
	case args[0] == "up":
		cluster, err := etcdproc.Start(context.Background(), 3)
		ts.Check(err)
		ts.Defer(func() { cluster.Stop() })
		s.etcd = cluster
		ts.Setenv("HOLDFAST_BACKEND", "etcd://"+strings.Join(cluster.Addrs(), ",")+"/locks")
	case args[0] == "kill":
		s.etcd.Members[0].Kill()
	}
}

// zkCmd starts an ensemble, or kills its leader.
func zkCmd(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value("servers").(*servers)
	switch {
	case neg || len(args) != 1:
		ts.Fatalf("usage: zk up|kill")
	case args[0] == "up":
		ensemble, err := zkproc.Start(context.Background(), 3)
		ts.Check(err)
		ts.Defer(func() { ensemble.Stop() })
		s.zk = ensemble
		ts.Setenv("HOLDFAST_BACKEND", "zk://"+strings.Join(ensemble.Addrs(), ",")+"/locks")
	case args[0] == "kill":
		s.zk.Leader().Kill()
	}
}

// servers holds the servers of one script.
type servers struct {
	all  []*redisproc.Server
	etcd *etcdproc.Cluster
	zk   *zkproc.Ensemble
}

func redisCommand(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value("servers").(*servers)
	if len(args) == 0 || neg {
		ts.Fatalf("usage: redis up|kill|pause|resume|empty|held|do")
	}
	switch args[0] {
	case "up":
		s.startServers(ts, args[1:])
	case "empty":
		s.checkEmpty(ts)
	case "held":
		s.awaitHeld(ts, args[1])
	case "do":
		i, err := strconv.Atoi(args[1])
		ts.Check(err)
		_, err = s.all[i-1].Do(args[2:]...)
		ts.Check(err)
	default:
		i, err := strconv.Atoi(args[1])
		ts.Check(err)
		switch server := s.all[i-1]; args[0] {
		case "kill":
			server.Kill()
		case "restart":
			ts.Check(server.Restart(context.Background()))
		case "pause":
			ts.Check(server.Pause())
		case "resume":
			ts.Check(server.Resume())
		}
	}
}

func (s *servers) startServers(ts *testscript.TestScript, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	opts := &redisproc.Options{}
	if len(args) > 1 {
		opts.Password = args[1]
	}
	var addrs []string
	for range n {
		server, err := redisproc.Start(context.Background(), opts)
		ts.Check(err)
		ts.Defer(func() { server.Stop() })
		s.all = append(s.all, server)
		addrs = append(addrs, server.Addr())
		ts.Setenv(fmt.Sprintf("NODE%d", len(addrs)), server.Addr())
	}
	url := "redis://" + addrs[0]
	if n > 1 {
		url = "redlock://" + strings.Join(addrs, ",") + "?quarantine=off"
	}
	ts.Setenv("HOLDFAST_BACKEND", url)
}

// checkEmpty fails if a lock or a queue is left. The token counter and the cards of clients are meant to stay.
func (s *servers) checkEmpty(ts *testscript.TestScript) {
	for _, server := range s.all {
		keys, err := server.Do("KEYS", "*")
		if err != nil {
			continue // the server is down
		}
		for _, key := range keys.([]any) {
			name := key.(string)
			if strings.Contains(name, "~probe:") { // expires by itself: the command may end while it still probes a server
				continue
			}
			queue := strings.HasPrefix(name, "holdfast:queue:")
			if queue { // the note of a force-release or adoption stays for a while
				places, err := server.Do("ZCOUNT", name, "(-1e14", "+inf")
				queue = err != nil || places != int64(0)
			}
			if strings.HasPrefix(name, "lock:") || queue {
				ts.Fatalf("%s is still on %s", name, server.Addr())
			}
		}
	}
}

func (s *servers) awaitHeld(ts *testscript.TestScript, name string) {
	eventually(ts.Fatalf, name+" is held", func() bool {
		reply, err := s.all[0].Do("EXISTS", "lock:"+name)
		return err == nil && reply == int64(1)
	})
}

// eventually waits until is returns true.
func eventually(fatal func(string, ...any), what string, is func() bool) {
	eventuallyWithin(fatal, maxWait(), what, is)
}

func eventuallyWithin(fatal func(string, ...any), limit time.Duration, what string, is func() bool) {
	for end := time.Now().Add(limit); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			fatal("not within %v: %s", limit, what)
			return
		}
	}
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: exits CODE COMMAND [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	path, text := ts.MkAbs(args[0]), strings.Join(args[1:], " ")
	var got []byte
	fatal := func(format string, args ...any) { ts.Fatalf(format+"; it has:\n%s", append(args, got)...) }
	eventually(fatal, fmt.Sprintf("%s has %q", args[0], text), func() (is bool) {
		got, _ = os.ReadFile(path)
		return len(got) > 0 && strings.Contains(string(got), text)
	})
}

func cmdEnded(ts *testscript.TestScript, neg bool, args []string) {
	file := args[0] + ".code"
	cmdAwait(ts, false, []string{file, "\n"})
	if got := strings.TrimSpace(ts.ReadFile(file)); got != args[1] {
		ts.Fatalf("exit code %s, want %s; output:\n%s", got, args[1], ts.ReadFile(args[0]+".log"))
	}
}

// signalsByName has the signals that the scripts send.
var signalsByName = map[string]syscall.Signal{
	"INT": unix.SIGINT, "TERM": unix.SIGTERM, "HUP": unix.SIGHUP, "QUIT": unix.SIGQUIT, "KILL": unix.SIGKILL, "STOP": unix.SIGSTOP,
	"CONT": unix.SIGCONT, "USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2, "WINCH": unix.SIGWINCH, "TSTP": unix.SIGTSTP,
}

func cmdSend(ts *testscript.TestScript, neg bool, args []string) {
	sig, ok := signalsByName[args[0]]
	if !ok {
		ts.Fatalf("no signal %q", args[0])
	}
	for _, pid := range pids(ts, args[1]) {
		ts.Check(unix.Kill(pid, sig))
	}
}

func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	for _, pid := range pids(ts, args[0]) {
		if neg {
			if !alive(pid) {
				ts.Fatalf("process %d has ended", pid)
			}
			continue
		}
		eventually(ts.Fatalf, fmt.Sprintf("process %d is gone", pid), func() bool { return !alive(pid) })
	}
}

func pids(ts *testscript.TestScript, file string) []int {
	cmdAwait(ts, false, []string{file, "\n"})
	var all []int
	for field := range strings.FieldsSeq(ts.ReadFile(file)) {
		pid, err := strconv.Atoi(field)
		ts.Check(err)
		all = append(all, pid)
	}
	return all
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool { return state(pid) != 0 && state(pid) != 'Z' }

// state returns the letter for a process's state in /proc, or 0.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	if len(rest) == 0 {
		return 0
	}
	return rest[0]
}
