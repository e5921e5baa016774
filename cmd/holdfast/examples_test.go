//go:build linux

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
)

// startTyped runs text in a shell, in b.dir, which has ./report.sh and the other scripts of the examples.
func (b *bench) startTyped(text string, env ...string) *job {
	b.t.Helper()
	for _, name := range []string{"report.sh", "deploy.sh", "scheduler.sh"} {
		text := "#!/bin/sh\necho $0 ran >>ran\n"
		if name == "scheduler.sh" {
			text += "exec sleep 60\n"
		}
		writeProgram(b.t, filepath.Join(b.dir, name), []byte(text))
	}
	b.write("holdfast.conf", "ttl = 20s\n")
	j := b.newCommand(b.t.Context())
	j.Path, j.Args = "/bin/sh", []string{"sh", "-c", text}
	j.Env = append(j.Env, "PATH="+filepath.Dir(b.path)+":"+os.Getenv("PATH"))
	j.Env = append(j.Env, env...)
	if err := j.Start(); err != nil {
		b.t.Fatal(err)
	}
	return j
}

// runAndExpect runs text and wants this exit code.
func (b *bench) runAndExpect(code int, text string, env ...string) string {
	b.t.Helper()
	j := b.startTyped(text, env...)
	if got := j.code(); got != code {
		b.t.Errorf("%s: exit code %d, want %d:\n%s%s", text, got, code, j.out.String(), j.log.String())
	}
	return j.out.String()
}

// commandExamples returns the examples at the end of a command's help.
func commandExamples(t *testing.T, command string) []string {
	t.Helper()
	cmd, _, err := cli.Command().Find([]string{command})
	if err != nil || cmd.Name() != command || cmd.Example == "" {
		t.Fatalf("holdfast %s has no examples: %v", command, err)
	}
	var all []string
	for line := range strings.Lines(cmd.Example) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// The test provides the files and programs that each example needs.
func TestHelpExamplesWork(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	seen := make(map[string]bool)
	next := func(command string) (first, second string) {
		seen[command] = true
		all := commandExamples(t, command)
		if len(all) != 2 {
			t.Fatalf("holdfast %s has the examples %q, want two", command, all)
		}
		return all[0], all[1]
	}
	each := func(code int, command string) {
		t.Helper()
		first, second := next(command)
		b.runAndExpect(code, first)
		b.runAndExpect(code, second)
	}
	// until runs an example that does not end by itself, and interrupts it once it shows text.
	until := func(code int, command, file, text string) {
		t.Helper()
		first, second := next(command)
		for _, example := range []string{first, second} {
			os.Remove(filepath.Join(b.dir, file))
			j := b.startTyped("exec " + example + " >" + file + " 2>&1")
			eventually(t.Fatalf, example+" shows "+text, func() bool { return strings.Contains(b.file(file), text) })
			if err := j.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			if got := j.code(); got != code {
				t.Errorf("%s: exit code %d, want %d:\n%s", example, got, code, b.file(file))
			}
		}
	}

	each(0, "run")
	if got := b.file("ran"); got != "./report.sh ran\n./deploy.sh ran\n" {
		t.Errorf("the examples of run ran %q", got)
	}
	until(0, "elect", "elect.log", "leading under the lock")
	each(0, "acquire")
	each(0, "renew")
	each(0, "check")
	first, second := next("release")
	b.runAndExpect(0, first)
	var ticket struct {
		Token json.Number
		Owner string
	}
	if err := json.Unmarshal([]byte(b.runAndExpect(0, "holdfast acquire -o json deploy")), &ticket); err != nil {
		t.Fatal(err)
	}
	b.runAndExpect(0, second, "TOKEN="+ticket.Token.String(), "OWNER="+ticket.Owner)

	if err := json.Unmarshal([]byte(b.runAndExpect(0, "holdfast acquire -o json nightly-report")), &ticket); err != nil {
		t.Fatal(err)
	}
	each(0, "show")
	each(0, "ls")
	b.runAndExpect(0, "holdfast acquire billing/1")
	until(130, "watch", "watch.log", "billing/1")
	first, second = next("force-release")
	b.runAndExpect(0, strings.Replace(first, "8841", ticket.Token.String(), 1))
	var held struct{ Token json.Number }
	if err := json.Unmarshal([]byte(b.runAndExpect(0, "holdfast show -o json backup")), &held); err != nil {
		t.Fatal(err)
	}
	b.runAndExpect(0, "holdfast force-release backup --reason test --yes --token "+held.Token.String())
	b.runAndExpect(0, "holdfast run --hold-at-least 60s backup -- true")
	b.runAndExpect(0, second)
	each(64, "top") // no terminal here; its own tests have one
	until(0, "console", "console.log", "console at http://")
	first, second = next("doctor")
	b.runAndExpect(1, first)             // this server keeps nothing on disk
	b.runAndExpect(0, second+",slowlog") // on an overloaded machine any command may be slow
	each(0, "leaks")
	each(0, "config")
	each(0, "version")
	if first, second = next("demo"); !testing.Short() {
		b.runAndExpect(0, first)
		b.runAndExpect(0, second)
	}
	first, second = next("migrate")
	server, err := pgproc.Start(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	dir, _, _ := strings.Cut(strings.TrimPrefix(server.DSN(), "host="), " ")
	pg := "HOLDFAST_BACKEND=postgres://holdfast:secret@/postgres?host=" + dir
	b.runAndExpect(0, first, pg)
	b.runAndExpect(0, second, pg)

	for _, cmd := range cli.Command().Commands() {
		if name := cmd.Name(); cmd.Runnable() && name != "help" && name != "completion" && !seen[name] {
			t.Errorf("no test runs the examples of %s", name)
		}
	}
}

// The test runs, line by line, the commands that holdfast prints if no backend is set.
func TestGettingStartedWorks(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	text := b.runAndExpect(0, "holdfast", "HOLDFAST_BACKEND=", "HOME="+b.dir, "XDG_CONFIG_HOME="+b.dir)
	if lines := strings.Count(text, "\n"); lines > 10 {
		t.Errorf("it prints %d lines, want at most 10:\n%s", lines, text)
	}
	var script []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") && !(testing.Short() && strings.Contains(line, "demo")) {
			script = append(script, strings.TrimSpace(line))
		}
	}
	all := strings.Replace(strings.Join(script, "\n"), "/tmp/", b.dir+"/", 1)
	out := b.runAndExpect(0, "set -e\n"+all, "HOLDFAST_BACKEND=")
	for _, want := range []string{"I have the lock\n", "VERDICT", "Usage:"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if len(script) < 4 {
		t.Errorf("it prints %q, want more", script)
	}
}
