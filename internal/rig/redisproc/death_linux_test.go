package redisproc_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

func TestMain(m *testing.M) {
	if os.Getenv("REDISPROC_TEST_PARENT") != "" {
		beParent()
		return
	}
	os.Exit(m.Run())
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "REDISPROC_TEST_PARENT=1", "TMPDIR="+t.TempDir())
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	parent.Process.Kill()
	parent.Wait()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is gone", func() bool { return !isListening(strings.TrimSpace(addr)) })
}

// beParent runs this test binary as the parent that gets killed.
func beParent() {
	server, err := redisproc.Start(context.Background(), nil)
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString(server.Addr() + "\n")
	select {}
}
