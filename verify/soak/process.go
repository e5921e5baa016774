//go:build linux

package main

import (
	"bufio"
	"encoding/json"
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
)

// process is this program as a client.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan state // closed when the process has closed its output
	exited  <-chan struct{}
	last    state
}

func startProcess(o order, logs io.Writer) (*process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program), answers: make(chan state)}
	p.cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	p.cmd.Stderr = logs
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout = in
	p.exited, err = child.Start(p.cmd, syscall.SIGKILL)
	in.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	go func() {
		defer out.Close()
		defer close(p.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var st state
			if json.Unmarshal(lines.Bytes(), &st) == nil { // a killed process may leave half a line
				p.answers <- st
			}
		}
	}()
	return p, nil
}

// askState waits for the state of the process.
func (p *process) askState() error {
	if _, err := io.WriteString(p.stdin, "state\n"); err != nil {
		return fmt.Errorf("the client is gone: %w", err)
	}
	select {
	case st, ok := <-p.answers:
		if !ok {
			return errors.New("the client is gone")
		}
		p.last = st
		return nil
	case <-time.After(patience):
		return fmt.Errorf("the client has not answered for %v", patience)
	}
}

func (p *process) kill() {
	p.cmd.Process.Kill() // fails only if it has ended
	for range p.answers {
	}
	<-p.exited
	p.stdin.Close()
}

// endClient makes the process release its locks and end, and waits for that.
func (p *process) endClient() error {
	p.stdin.Close()
	late := time.AfterFunc(2*patience, func() { p.cmd.Process.Kill() })
	for range p.answers {
	}
	<-p.exited
	late.Stop()
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("client: %v", p.cmd.ProcessState)
	}
	return nil
}

// processFamily returns a process and all its descendants.
func processFamily(pid int) []int {
	all := []int{pid}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // ignore an error: the thread has ended
		for word := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				all = append(all, processFamily(n)...)
			}
		}
	}
	return all
}

// usedMemory returns the memory of processes in bytes, with shared pages divided among them.
func usedMemory(pids ...int) (sum float64) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		_, rest, _ := strings.Cut(string(text), "\nPss:")
		if fields := strings.Fields(rest); len(fields) > 0 {
			kb, _ := strconv.ParseFloat(fields[0], 64)
			sum += kb * 1024
		}
	}
	return sum
}

// openDescriptors returns the number of open descriptors of processes.
func openDescriptors(pids ...int) (sum float64) {
	for _, pid := range pids {
		files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		sum += float64(len(files))
	}
	return sum
}
