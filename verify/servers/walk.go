//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// walkCommands runs the verbs of the command at the URL, and then the command's scripts that start such a
// server themselves.
func (r *row) walkCommands(ctx context.Context, s settings, url string, res *result) {
	if res.isRejected() {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, 4*patience)
	err := walkVerbs(bounded, url)
	cancel()
	if err != nil {
		res.noteFailure("scripts", err)
		return
	}
	res.cells["scripts"] = "verbs"
	if len(r.scripts.packages) == 0 {
		return
	}
	r.runTests(ctx, s, "scripts", r.scripts, "", res)
	res.cells["scripts"] = "verbs; " + res.cells["scripts"]
}

// commandShell is the command with a backend, in a folder.
type commandShell struct{ backend, dir string }

func (s commandShell) newCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := runCommand(ctx, args...)
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Env, "HOLDFAST_BACKEND="+s.backend, "USER=tester")
	return cmd
}

// expectCode runs the command. It returns an error unless the exit code is code and the output contains the
// text.
func (s commandShell) expectCode(ctx context.Context, code int, text string, args ...string) (out string, err error) {
	said, err := s.newCommand(ctx, args...).CombinedOutput()
	return string(said), judgeRun(err, code, text, string(said), args)
}

func judgeRun(err error, code int, text, said string, args []string) error {
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else if err != nil {
		return err
	}
	if got != code || !strings.Contains(said, text) {
		return fmt.Errorf("holdfast %s: exit code %d, want %d and %q: %s", strings.Join(args, " "), got, code, text, said)
	}
	return nil
}

func walkVerbs(ctx context.Context, url string) error {
	dir, err := os.MkdirTemp("", "holdfast-walk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := commandShell{backend: url, dir: dir}
	if _, err := s.expectCode(ctx, 3, "", "run", "--ttl", "20s", "walk", "--", "sh", "-c", "exit 3"); err != nil {
		return err
	}
	if err := s.handOver(ctx); err != nil {
		return err
	}
	if strings.HasPrefix(url, "zk:") { // a ZooKeeper lock ends with the process that acquired it
		_, err := s.expectCode(ctx, 64, "not supported", "acquire", "--file", "f", "walk")
		return err
	}
	return s.passAround(ctx)
}

// handOver makes a run hold a lock that a second run fails to get and a third one waits for.
func (s commandShell) handOver(ctx context.Context) error {
	holder := s.newCommand(ctx, "run", "--ttl", "20s", "--note", "walking", "walk", "--", "sh", "-c", "echo held; cat >/dev/null")
	end, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	holder.Stderr = &said
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		end.Close()
		return fmt.Errorf("holdfast run: printed %q: %w: %s", line, errors.Join(err, holder.Wait()), said.String())
	}
	err = s.inspectHeld(ctx)
	waiting := make(chan error, 1)
	go func() {
		_, err := s.expectCode(ctx, 0, "", "run", "--ttl", "20s", "-w", "60s", "walk", "--", "true")
		waiting <- err
	}()
	end.Close()
	io.Copy(io.Discard, out)
	return errors.Join(err, judgeRun(holder.Wait(), 0, "", said.String(), holder.Args[1:]), <-waiting)
}

func (s commandShell) inspectHeld(ctx context.Context) error {
	_, err1 := s.expectCode(ctx, 75, "is held by", "run", "--ttl", "20s", "-n", "walk", "--", "true")
	_, err2 := s.expectCode(ctx, 0, "held", "show", "walk")
	_, err3 := s.expectCode(ctx, 0, "walk", "ls")
	return errors.Join(err1, err2, err3)
}

// passAround passes a lease in a file from command to command, and force-releases it at the end.
func (s commandShell) passAround(ctx context.Context) error {
	file := filepath.Join(s.dir, "lease")
	for _, step := range []struct {
		code int
		text string
		args []string
	}{
		{0, "", []string{"acquire", "--ttl", "60s", "--file", file, "walk"}},
		{0, "", []string{"check", "--file", file}},
		{0, "", []string{"renew", "--file", file}},
		{0, "", []string{"release", "--file", file}},
		{1, "", []string{"show", "-e", "walk"}},
		{0, "", []string{"acquire", "--ttl", "60s", "--file", file, "walk"}},
	} {
		if _, err := s.expectCode(ctx, step.code, step.text, step.args...); err != nil {
			return err
		}
	}
	shown, err := s.expectCode(ctx, 0, "token", "show", "walk")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(shown, "token")
	token, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	if _, err := s.expectCode(ctx, 0, "", "force-release", "walk", "--token", token, "--reason", "walk", "--yes"); err != nil {
		return err
	}
	_, err = s.expectCode(ctx, 1, "", "check", "--file", file)
	return err
}
