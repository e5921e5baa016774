//go:build unix

package tempo

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperVariable makes this test program a helper that only waits.
const helperVariable = "TEMPO_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		defer Start()()
		os.Stdin.Read(make([]byte, 1)) // until the test lets it end
		return
	}
	os.Exit(m.Run())
}

func TestStallIsNoted(t *testing.T) {
	helper := exec.CommandContext(t.Context(), os.Args[0])
	helper.Env = append(os.Environ(), helperVariable+"=1", Variable+"=2")
	errs, err := helper.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := helper.StdinPipe(); err != nil { // closed by Wait
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	noted := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(errs).ReadString('\n')
		noted <- line
	}()
	for line := ""; line == ""; { // it may be stopped before it has begun to watch
		helper.Process.Signal(syscall.SIGSTOP)
		time.Sleep(3 * stallTime()) // the helper was stopped for twice as long as it takes to notice
		helper.Process.Signal(syscall.SIGCONT)
		select {
		case line = <-noted:
			if !strings.HasPrefix(line, "SLOW: stood still ") || !strings.HasSuffix(line, ", at pace 2.00\n") {
				t.Errorf("noted %q", line)
			}
		case <-time.After(stallTime()):
		}
	}
	helper.Process.Kill()
	helper.Wait()
}
