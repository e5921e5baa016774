package pgproc_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
)

func TestServerAcceptsConnectionsUntilItIsStopped(t *testing.T) {
	t.Parallel()
	server, err := pgproc.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir, _, _ := strings.Cut(strings.TrimPrefix(server.DSN(), "host="), " ")
	socket := filepath.Join(dir, ".s.PGSQL.5432")
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	for range 2 {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a stopped server: %v, want it deleted", err)
	}
}

// Neither an open connection nor a new one gets an answer until the server is resumed.
func TestPausedServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	server, err := pgproc.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	dir, _, _ := strings.Cut(strings.TrimPrefix(server.DSN(), "host="), " ")
	const startup = "\x00\x00\x00\x29\x00\x03\x00\x00user\x00holdfast\x00database\x00postgres\x00\x00"
	const query = "Q\x00\x00\x00\x0dSELECT 1\x00"
	dial := func() net.Conn {
		conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.5432"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.Write([]byte(startup))
		return conn
	}
	answers := func(conn net.Conn, within time.Duration) error {
		conn.SetReadDeadline(time.Now().Add(within))
		_, err := conn.Read(make([]byte, 4096))
		return err
	}
	open := dial()
	if err := answers(open, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	for answers(open, 100*time.Millisecond) == nil { // the rest of the greeting
	}
	open.Write([]byte(query))
	for _, conn := range []net.Conn{open, dial()} {
		if err := answers(conn, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a paused server answered: %v", err)
		}
		defer func() {
			if err := answers(conn, time.Minute); err != nil {
				t.Errorf("after the pause: %v", err)
			}
		}()
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestBadSettingReportsServersReason(t *testing.T) {
	t.Parallel()
	server, err := pgproc.Start(t.Context(), "no_such_setting=1")
	if err == nil {
		server.Stop()
		t.Fatal("accepted")
	}
	if !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("error %v, want the server's reason", err)
	}
}
