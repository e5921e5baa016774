//go:build linux

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// holdfast may signal the script, but not the processes that the script runs as another user. It reports that
// while the lease is held.
func TestSudoInScriptIsReportedEarly(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("only root can make a program that changes its user, and setpriv is needed")
	}
	b := newBench(t, 1)
	sudo, own := filepath.Join(b.dir, "sudo"), filepath.Join(b.dir, "holdfast")
	for from, to := range map[string]string{setpriv: sudo, b.path: own} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		writeProgram(t, to, text)
	}
	if err := os.Chmod(sudo, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	for dir := b.dir; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) { // let the other user enter
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.path = own
	j := b.newCommand(t.Context(), "run", "-q", "--ttl", "5s", "job", "--", "sh", "-c",
		sudo+` --reuid 0 --regid 0 --clear-groups sh -c 'echo $$; exec sleep 60'; echo over`)
	j.SysProcAttr.Credential = &syscall.Credential{Uid: 4711, Gid: 4711}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	j.Stdout, j.Stderr = write, write
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	var seen bytes.Buffer
	pid := 0
	for lines := bufio.NewScanner(read); lines.Scan(); {
		seen.WriteString(lines.Text() + "\n")
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			pid = n
		}
		if strings.Contains(lines.Text(), "runs as another user") {
			syscall.Kill(pid, syscall.SIGKILL) // only root can end it
		}
	}
	j.Wait()
	if report, rest, found := strings.Cut(seen.String(), "runs as another user"); !found || pid == 0 || !strings.Contains(rest, "over") {
		t.Errorf("the report came %v, while the command ran: %q, %q", found, report, rest)
	}
}
