//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// chainPause is the pause between two short runs of the command.
const chainPause = 10 * time.Second

// commandRun runs the command beside the clients of an engine: one permanent run with its guard, short runs one
// after another, and a console with a browser.
type commandRun struct {
	dir            string // folder of the program
	url            string // URL of the locks
	logs           io.Writer
	guard, console *exec.Cmd
	guardOver      <-chan struct{}
	consoleOver    <-chan struct{}
	page           string // address of the console
	stream         io.Closer
	cancel         context.CancelFunc
	work           sync.WaitGroup
	runs, failed   atomic.Int64 // numbers of short runs
}

// startBeside waits until the console serves. After an error it leaves nothing behind.
func startBeside(ctx context.Context, url string, logs io.Writer) (_ *commandRun, err error) {
	b := &commandRun{url: url, logs: logs}
	ctx, b.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop())
		}
	}()
	if b.dir, err = os.MkdirTemp("", "holdfast-soak-"); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", b.dir, "github.com/holdfast-go/holdfast/cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build holdfast: %w: %s", err, out)
	}
	if err := b.startHolder(); err != nil {
		return nil, err
	}
	if err := b.startConsole(); err != nil {
		return nil, err
	}
	if err := b.watchConsole(ctx); err != nil {
		return nil, err
	}
	b.work.Go(func() { b.runChain(ctx) })
	return b, nil
}

func (b *commandRun) newCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(b.dir, "holdfast"), args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+b.url)
	cmd.Stderr = b.logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C reaches only the soak, which then ends it
	return cmd
}

// startHolder starts the permanent run. Its default TTL of 30 s tolerates a busy machine.
func (b *commandRun) startHolder() (err error) {
	b.guard = b.newCommand("run", "command/guard", "--", "sleep", "infinity")
	b.guardOver, err = child.Start(b.guard, syscall.SIGTERM)
	return err
}

// startConsole starts the console and reads its address.
func (b *commandRun) startConsole() error {
	b.console = b.newCommand("console", "--listen", "127.0.0.1:0")
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	b.console.Stdout = in
	b.consoleOver, err = child.Start(b.console, syscall.SIGTERM)
	in.Close()
	if err != nil {
		out.Close()
		return err
	}
	lines := bufio.NewScanner(out)
	for b.page == "" && lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "console at "); ok {
			b.page = strings.TrimSuffix(url, "/")
		}
	}
	b.work.Go(func() {
		io.Copy(io.Discard, out) // ends with the console
		out.Close()
	})
	if b.page == "" {
		return errors.New("the console has not said where it is")
	}
	return nil
}

// watchConsole reads the console like a browser that stays open.
func (b *commandRun) watchConsole(ctx context.Context) error {
	body, err := b.getPage(ctx, "/events")
	if err != nil {
		return err
	}
	b.stream = body
	b.work.Go(func() { io.Copy(io.Discard, body) }) // ends with the console, or with stop
	return nil
}

func (b *commandRun) getPage(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.page+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("the console answers %s with %s", path, resp.Status)
	}
	return resp.Body, nil
}

// runChain runs the command repeatedly.
func (b *commandRun) runChain(ctx context.Context) {
	for {
		if sleepFor(ctx, chainPause); ctx.Err() != nil {
			return
		}
		b.runs.Add(1)
		if err := b.newCommand("run", "--wait", "2m", "command/chain", "--", "true").Run(); err != nil {
			b.failed.Add(1)
			fmt.Fprintln(b.logs, "soak: a short run of the command:", err)
		}
	}
}

// readConsole reads the console like a browser that visits briefly.
func (b *commandRun) readConsole(ctx context.Context, figures map[string]float64) error {
	select {
	case <-b.guardOver: // report its end once, and start another
		return errors.Join(fmt.Errorf("the run with the guard has ended: %v", b.guard.ProcessState), b.startHolder())
	default:
	}
	for _, path := range []string{"/", "/doctor", "/events"} {
		body, err := b.getPage(ctx, path)
		if err != nil {
			return err
		}
		_, err = body.Read(make([]byte, 1))
		if body.Close(); err != nil {
			return fmt.Errorf("the console's %s: %w", path, err)
		}
	}
	guard := processFamily(b.guard.Process.Pid)
	figures["guard rss"], figures["guard files"] = usedMemory(guard...), openDescriptors(guard...)
	figures["console rss"], figures["console files"] = usedMemory(b.console.Process.Pid), openDescriptors(b.console.Process.Pid)
	return nil
}

func (b *commandRun) stop() error {
	b.cancel()
	for _, p := range []struct {
		cmd  *exec.Cmd
		over <-chan struct{}
	}{{b.guard, b.guardOver}, {b.console, b.consoleOver}} {
		if p.over == nil {
			continue
		}
		p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
		select {
		case <-p.over:
		case <-time.After(patience):
			p.cmd.Process.Kill()
			<-p.over
		}
	}
	if b.stream != nil {
		b.stream.Close()
	}
	b.work.Wait()
	http.DefaultClient.CloseIdleConnections()
	return os.RemoveAll(b.dir)
}
