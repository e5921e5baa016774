// Package foreign starts lock programs in other languages, with their libraries.
package foreign

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrMissing is returned if this machine lacks something that a program needs.
var ErrMissing = errors.New("not on this machine")

// programFolder returns the folder with the programs.
func programFolder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(file))
}

// fetchers downloads the libraries of a language by tools/foreign, once per process, and returns their folder.
var fetchers = map[string]func() (string, error){
	"python": sync.OnceValues(func() (string, error) { return fetchModules("python") }),
	"node":   sync.OnceValues(func() (string, error) { return fetchModules("node") }),
	"java":   sync.OnceValues(func() (string, error) { return fetchModules("java") }),

	"kubernetes": sync.OnceValues(func() (string, error) { return fetchModules("kubernetes") }),
}

// Libraries returns the folder of a download of tools/foreign. It blocks for up to fetchTimeout, or
// buildTimeout for Kubernetes, whose 1,400 packages are compiled.
func Libraries(name string) (string, error) {
	if once := fetchers[name]; once != nil {
		return once()
	}
	return fetchModules(name)
}

const (
	fetchTimeout = 3 * time.Minute
	buildTimeout = 40 * time.Minute
)

func fetchModules(language string) (string, error) {
	timeout := fetchTimeout
	if language == "kubernetes" {
		timeout = buildTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(programFolder(), "..", "..", "tools", "foreign"), language)
	cmd.Stderr, cmd.WaitDelay = &said, time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %w: %s", ErrMissing, err, bytes.TrimSpace(said.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// Program returns a program in another language, with its libraries; for Java, name is a class.
func Program(ctx context.Context, language, name string, args ...string) (*exec.Cmd, error) {
	dir, err := fetchers[language]()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(programFolder(), language, name)
	var cmd *exec.Cmd
	switch language {
	case "java":
		// A small heap, and no compiler that uses all processors: other programs run beside it.
		flags := []string{"-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir + ":" + filepath.Join(dir, "*"), name}
		cmd = exec.CommandContext(ctx, "java", append(flags, args...)...)
	case "node":
		cmd = exec.CommandContext(ctx, "node", append([]string{file}, args...)...)
		cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	default:
		cmd = exec.CommandContext(ctx, "python3", append([]string{file}, args...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	}
	return cmd, nil
}

// workers lists the programs of each language that work under a lock.
var workers = map[string]string{"python": "worker.py", "node": "worker.cjs", "java": "Worker"}

// Workers are the workers of one program.
type Workers struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan string   // results for Run
	said []chan string // by worker: results for Do
}

// Start starts n workers of a library for the lock on key, on servers of this machine, and returns once they
// are ready. Together they will increment a counter count times.
func Start(ctx context.Context, language, library string, addrs []string, key string, count, n int) (*Workers, error) {
	var ports []string
	for _, addr := range addrs {
		ports = append(ports, addr[strings.LastIndex(addr, ":")+1:])
	}
	cmd, err := Program(ctx, language, workers[language], library, strings.Join(ports, ","), key, strconv.Itoa(count), strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	w := &Workers{cmd: cmd, in: in, done: make(chan string, 1)}
	for range n {
		w.said = append(w.said, make(chan string, 1))
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		w.Stop()
		return nil, fmt.Errorf("%s is not ready: %q, %w", library, line, err)
	}
	go w.readLines(lines)
	return w, nil
}

// readLines passes each line to the caller that waits for it. It returns when the program ends.
func (w *Workers) readLines(lines *bufio.Reader) {
	defer close(w.done)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			for _, c := range w.said {
				close(c)
			}
			return
		}
		number, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i, err := strconv.Atoi(number); err == nil && i >= 0 && i < len(w.said) {
			w.said[i] <- text
		} else {
			w.done <- line
		}
	}
}

// Run makes all workers increment the counter and returns their results.
func (w *Workers) Run() (locks int, longest time.Duration, err error) {
	if _, err := io.WriteString(w.in, "go\n"); err != nil {
		return 0, 0, err
	}
	var got struct {
		Locks   int
		Longest float64
	}
	err = json.Unmarshal([]byte(<-w.done), &got)
	return got.Locks, time.Duration(got.Longest * float64(time.Second)), err
}

// Do makes one Java worker use its lock and returns the outcome. Each worker does one thing at a time.
func (w *Workers) Do(worker int, verb string) (string, error) {
	if _, err := fmt.Fprintf(w.in, "%s %d\n", verb, worker); err != nil {
		return "", err
	}
	said, ok := <-w.said[worker]
	if !ok {
		return "", errors.New("the program has ended")
	}
	return said, nil
}

// Stop ends the program.
func (w *Workers) Stop() {
	w.cmd.Process.Kill() // fails only if it has ended
	w.cmd.Wait()
}
