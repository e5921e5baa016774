//go:build unix

package pgproc_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		t.Errorf("folder of a stopped server: %v, want that it does not exist", err)
	}
}

func TestBadSettingIsRefusedWithTheServersReason(t *testing.T) {
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
