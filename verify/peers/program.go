//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// scripts are the programs in other languages that speak the protocol of serveLibrary.
var scripts = map[string]string{"python": "holder.py", "node": "holder.cjs", "java": "Holder"}

// notice is an unrequested message of a library.
type notice struct {
	text string
	at   time.Time
}

// program is a process with workers of one library, each with its own client.
type program struct {
	cmd     *exec.Cmd
	exited  <-chan struct{}
	in      io.WriteCloser
	answers []chan string
	notices []chan notice
	version string
}

// launchProgram starts the program of a peer, for a server at addr, and returns once its workers are
// connected.
func launchProgram(ctx context.Context, p *peer, addr, key string, workers int) (*program, error) {
	cmd, err := programCommand(ctx, p, addr, key, workers)
	if err != nil {
		return nil, err
	}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	var output strings.Builder
	cmd.Stderr = &head{text: &output}
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	g := &program{cmd: cmd, in: in}
	if g.exited, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	for range workers {
		g.answers, g.notices = append(g.answers, make(chan string, 10)), append(g.notices, make(chan notice, 100))
	}
	ready := make(chan string, 1)
	go g.readLines(out, ready)
	select {
	case line := <-ready:
		var ok bool
		if g.version, ok = strings.CutPrefix(line, "ready "); ok {
			g.version = strings.TrimPrefix(g.version, "v")
			return g, nil
		}
		g.stop()
		return nil, fmt.Errorf("%s is not ready: %q; %s", p.lib, line, output.String())
	case <-ctx.Done():
		g.stop()
		return nil, fmt.Errorf("%s is not ready: %w; %s", p.lib, ctx.Err(), output.String())
	}
}

// programCommand returns the command of a peer's program.
func programCommand(ctx context.Context, p *peer, addr, key string, workers int) (*exec.Cmd, error) {
	n, seconds := strconv.Itoa(workers), strconv.Itoa(int(ttl/time.Second))
	switch p.language {
	case "go":
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), serveVariable+"="+strings.Join([]string{p.lib, addr, key, n}, " "))
		return cmd, nil
	case "kubernetes":
		dir, err := foreign.Libraries("kubernetes")
		if err != nil {
			return nil, err
		}
		_, port, _ := strings.Cut(addr, ":")
		return exec.CommandContext(ctx, filepath.Join(dir, "elector"), port, key, seconds, n), nil
	default:
		_, port, _ := strings.Cut(addr, ":")
		return foreign.Program(ctx, p.language, scripts[p.language], p.lib, port, key, seconds, n)
	}
}

// head keeps the beginning of the written text.
type head struct{ text *strings.Builder }

func (h *head) Write(b []byte) (int, error) {
	if h.text.Len() < 4000 {
		h.text.Write(b)
	}
	return len(b), nil
}

// readLines distributes the lines of the program until it ends.
func (g *program) readLines(out io.Reader, ready chan<- string) {
	lines := bufio.NewReader(out)
	first, _ := lines.ReadString('\n')
	ready <- strings.TrimSpace(first)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			for _, c := range g.answers {
				close(c)
			}
			return
		}
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		i, err := strconv.Atoi(words[0])
		if err != nil || len(words) < 3 || i >= len(g.answers) {
			continue // output of a library
		}
		if words[1] == "!" {
			g.notices[i] <- notice{words[2], time.Now()}
		} else {
			g.answers[i] <- words[2]
		}
	}
}

// errNoAnswer reports that a worker has not answered in time.
var errNoAnswer = errors.New("no answer")

// sendCommand sends a worker a command and returns its answer. Do not use a worker again that has not answered
// in time.
func (g *program) sendCommand(ctx context.Context, limit time.Duration, worker int, verb string) (string, error) {
	if _, err := fmt.Fprintf(g.in, "%d %s\n", worker, verb); err != nil {
		return "", err
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case answer, ok := <-g.answers[worker]:
		if !ok {
			return "", errors.New("the program has ended")
		}
		return answer, nil
	case <-timeout.C:
		return "", errNoAnswer
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (g *program) pause() error  { return g.cmd.Process.Signal(syscall.SIGSTOP) }
func (g *program) resume() error { return g.cmd.Process.Signal(syscall.SIGCONT) }

// stop kills the program and waits for its end.
func (g *program) stop() {
	g.cmd.Process.Kill() // fails only if it has ended
	<-g.exited
}
