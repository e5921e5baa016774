package redisproc_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

func doCommand(t *testing.T, server *redisproc.Server, args ...string) any {
	t.Helper()
	reply, err := server.Do(args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// eventually waits for another process to do something.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 90 s: %s", what)
		}
	}
}

func isListening(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func TestForgottenServersJoinAgain(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, &redisproc.ClusterOptions{Masters: 2})
	a, b := cluster.Servers[0], cluster.Servers[1]
	for _, pair := range [][2]*redisproc.Server{{a, b}, {b, a}} {
		id, err := pair[1].ID()
		if err != nil {
			t.Fatal(err)
		}
		doCommand(t, pair[0], "CLUSTER", "FORGET", id)
	}
	if err := cluster.Await(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestServersAreSeparate(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for i, server := range servers {
		doCommand(t, server, "SET", "key", server.Addr())
		for _, other := range servers[:i] {
			if other.Addr() == server.Addr() || other.Dir() == server.Dir() || other.Pid() == server.Pid() {
				t.Errorf("two servers share a port, a directory or a process: %s %s %d", server.Addr(), server.Dir(), server.Pid())
			}
		}
	}
	for _, server := range servers {
		if got := doCommand(t, server, "GET", "key"); got != server.Addr() {
			t.Errorf("%s holds %v", server.Addr(), got)
		}
	}
}

func TestStopRemovesProcessAndFiles(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	for range 2 {
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if isListening(server.Addr()) {
		t.Error("still listens")
	}
	if _, err := os.Stat(server.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a stopped server: %v, want it deleted", err)
	}
}

func TestNamedFolderIsKept(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, &redisproc.Options{Dir: t.TempDir()})
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server.Dir()); err != nil {
		t.Error(err)
	}
}

func TestErrorReplyIsReturnedAsError(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	if _, err := server.Do("NOSUCH"); err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Errorf("error %v, want the server's error", err)
	}
	if got := doCommand(t, server, "GET", "absent"); got != nil {
		t.Errorf("absent key: %v", got)
	}
	if got := doCommand(t, server, "INCR", "n"); got != int64(1) {
		t.Errorf("INCR: %v", got)
	}
}

func TestPasswordAndUsersCanLogIn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, &redisproc.Options{
		Password: `a "quoted" \ pass` + "\xff'",
		ACL:      []string{"locker on >secret ~lock:* +get"},
	})
	if got := doCommand(t, server, "PING"); got != "PONG" {
		t.Errorf("PING: %v", got)
	}
	if got := doCommand(t, server, "AUTH", "locker", "secret"); got != "OK" {
		t.Errorf("AUTH of the other user: %v", got)
	}
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("PING\r\n"))
	if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.HasPrefix(line, "-NOAUTH") {
		t.Errorf("PING without a password: %q, %v", line, err)
	}
}

func TestServerWithoutDefaultUserStarts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, &redisproc.Options{ACL: []string{"default off"}})
	if _, err := server.Do("PING"); err == nil {
		t.Error("the default user can log in")
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	anonymous := config.Clone()
	anonymous.Certificates = nil
	for _, c := range []struct {
		name   string
		mutual bool
		client *tls.Config
		served bool
	}{
		{"mutual, with certificate", true, config, true},
		{"mutual, without", true, anonymous, false},
		{"server only, without", false, anonymous, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, &redisproc.Options{TLS: cert, AuthClients: c.mutual, Password: "p"})
			if got := doCommand(t, server, "PING"); got != "PONG" {
				t.Errorf("PING: %v", got)
			}
			conn, err := tls.Dial("tcp", server.Addr(), c.client)
			if err != nil {
				t.Fatal(err) // TLS 1.3: a rejected certificate shows at the first read only
			}
			defer conn.Close()
			conn.Write([]byte("PING\r\n"))
			line, err := bufio.NewReader(conn).ReadString('\n')
			if served := err == nil && strings.HasPrefix(line, "-NOAUTH"); served != c.served {
				t.Errorf("answer %q, %v; served %v, want %v", line, err, served, c.served)
			}
		})
	}
}

func TestOnlyPersistentDataSurvivesRestart(t *testing.T) {
	t.Parallel()
	kill := func(s *redisproc.Server, ctx context.Context) error { s.Kill(); return s.Restart(ctx) }
	for _, c := range []struct {
		name       string
		appendOnly string
		again      func(*redisproc.Server, context.Context) error
		kept       bool
	}{
		{"memory, crash", "", kill, false},
		{"memory, orderly restart", "", (*redisproc.Server).Restart, false},
		{"append-only, crash", "everysec", kill, true},
		{"append-only always, orderly restart", "always", (*redisproc.Server).Restart, true},
		{"append-only, wipe", "always", (*redisproc.Server).Wipe, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, &redisproc.Options{AppendOnly: c.appendOnly})
			addr, pid := server.Addr(), server.Pid()
			doCommand(t, server, "SET", "key", "value")
			if err := c.again(server, t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := doCommand(t, server, "GET", "key"); (got == "value") != c.kept {
				t.Errorf("key afterwards: %v; kept should be %v", got, c.kept)
			}
			if server.Addr() != addr || server.Pid() == pid {
				t.Errorf("address %s, pid %d; was %s, %d", server.Addr(), server.Pid(), addr, pid)
			}
		})
	}
}

func TestKilledServerIsDownAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	server.Kill()
	server.Kill()
	if isListening(server.Addr()) {
		t.Error("still listens")
	}
}

func TestPausedServerAnswersAfterResume(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	conn.Write([]byte("PING\r\n"))
	answer := bufio.NewReader(conn)
	conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if line, err := answer.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server answered %q, %v", line, err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(90 * time.Second))
	if line, err := answer.ReadString('\n'); line != "+PONG\r\n" {
		t.Errorf("after Resume: %q, %v", line, err)
	}
}

func TestPausedServerCanBeStopped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if isListening(server.Addr()) {
		t.Error("still listens")
	}
}

func replicaOf(master *redisproc.Server) []string {
	host, port, _ := strings.Cut(master.Addr(), ":")
	return []string{"--replicaof", host, port}
}

func TestReplicaFollows(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, &redisproc.Options{Password: "p"})
	doCommand(t, master, "SET", "key", "value")
	replica := redistest.Start(t, &redisproc.Options{Password: "p", Args: replicaOf(master)})
	eventually(t, "the key is replicated", func() bool { return doCommand(t, replica, "GET", "key") == "value" })
}

func TestArgumentsOverrideOptions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, &redisproc.Options{
		AppendOnly: "no", Args: []string{"--appendfsync", "always"},
	})
	if got := doCommand(t, server, "CONFIG", "GET", "appendfsync"); !reflect.DeepEqual(got, []any{"appendfsync", "always"}) {
		t.Errorf("the server's policy is %v", got)
	}
}

func TestBadOptionsAreRejected(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*redisproc.Options{
		"port":        {Port: 70000},
		"append-only": {AppendOnly: "sometimes"},
		"ACL":         {ACL: []string{"a on\nappendonly yes"}},
		"argument":    {Args: []string{"--no-such-option", "1"}},
	} {
		if server, err := redisproc.Start(t.Context(), opts); err == nil {
			t.Errorf("%s: accepted", name)
			server.Stop()
		}
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := redisproc.Start(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// A goroutine that ends while it has locked its thread ends the thread too, and Linux then kills the children
// that the thread has started.
func TestServerSurvivesStartingThread(t *testing.T) {
	t.Parallel()
	started := make(chan *redisproc.Server)
	go func() {
		runtime.LockOSThread()
		server, err := redisproc.Start(t.Context(), nil)
		if err != nil {
			t.Error(err)
		}
		started <- server
	}()
	server := <-started
	if server == nil {
		return
	}
	t.Cleanup(func() { server.Stop() })
	for range 100 { // threads end some time after their goroutine
		runtime.Gosched()
		doCommand(t, server, "PING")
	}
}

func TestServersMatchTheirNames(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"redis8": "redis_version:8.", "valkey8": "valkey_version:8."} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, &redisproc.Options{Program: redistest.Program(t, name)})
			if info, _ := doCommand(t, server, "INFO", "server").(string); !strings.Contains(info, version) {
				t.Errorf("INFO does not have %q: %s", version, info)
			}
		})
	}
}
