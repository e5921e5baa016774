//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// A worker finds the URL of its locks and the socket of the counters in these variables.
const (
	workerVariable = "HOLDFAST_HAMMER_URL"
	socketVariable = "HOLDFAST_HAMMER_SOCKET"
)

const (
	hammerWorkers = 3
	hammerKeys    = 2
	killPause     = 2 * time.Second
)

// counter is a value that the holders of one lock increment. It rejects the tokens of earlier holders, also for
// reads: a value that was read before a later holder entered must not be written afterwards.
type counter struct {
	mu      sync.Mutex
	value   int
	highest int64
	inside  map[int]int64 // by client: token of a client that is inside
	tally
}

// tally holds the counts of a run.
type tally struct{ Acked, Value, Refused, Repeated, Disorder int }

// enterHolder admits a holder and returns the value to increment; ok is false for the token of an earlier
// holder.
func (c *counter) enterHolder(client int, token int64) (value int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case token < c.highest:
		c.Disorder++
		c.Refused++
		return 0, false
	case token == c.highest:
		c.Repeated++
	}
	c.highest = token
	c.inside[client] = token
	return c.value, true
}

// writeValue writes the value of a holder that is inside.
func (c *counter) writeValue(client int, value int) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	token, in := c.inside[client]
	delete(c.inside, client)
	if !in || token != c.highest {
		c.Refused++
		return false
	}
	c.value = value
	c.Acked++
	return true
}

// removeHolder removes a client whose process has ended.
func (c *counter) removeHolder(client int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inside, client)
}

// lostIncrements returns the number of acknowledged increments that are missing from the value.
func (t tally) lostIncrements() int { return t.Acked - t.Value }

func (t tally) String() string {
	return fmt.Sprintf("%d updates: %d lost, %d out of order, %d tokens twice", t.Acked, t.lostIncrements(), t.Disorder, t.Repeated)
}

// runHammer runs workers as processes that increment under locks; every few seconds it kills one of them.
func (r *row) runHammer(ctx context.Context, s settings, url string, res *result) {
	if res.isRejected() {
		return
	}
	t, kills, err := r.hammerOnce(ctx, url, s.hammer)
	done := fmt.Sprintf("%v, %d kills", s.hammer, kills)
	if r.habit != nil {
		done += fmt.Sprintf(", %d %s", r.habit.done.Load(), r.habit.name)
	}
	switch {
	case err != nil:
		res.noteFailure("hammer", err)
	case t.lostIncrements() != 0 || t.Disorder != 0 || t.Repeated != 0 || t.Acked == 0:
		res.noteFailure("hammer", errors.New(t.String()))
	default:
		res.cells["hammer"] = fmt.Sprintf("%s, %d updates", done, t.Acked)
	}
}

func (r *row) hammerOnce(ctx context.Context, url string, length time.Duration) (t tally, kills int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-hammer-")
	if err != nil {
		return t, 0, err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "counters"))
	if err != nil {
		return t, 0, err
	}
	var counters [hammerKeys]*counter
	for i := range counters {
		counters[i] = &counter{inside: make(map[int]int64)}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for client := 1; ; client++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serveCounter(conn, client, counters[:])
			})
		}
	})
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	acted := make(chan error, 1)
	go func() {
		if r.habit == nil {
			acted <- nil
			return
		}
		acted <- r.habit.repeat(ctx, 2*killPause)
	}()
	kills, err = runAndKillWorkers(ctx, url, l.Addr().String())
	cancel()
	err = errors.Join(err, <-acted)
	l.Close()
	serving.Wait()
	for _, c := range counters {
		t.Acked += c.Acked
		t.Value += c.value
		t.Refused += c.Refused
		t.Repeated += c.Repeated
		t.Disorder += c.Disorder
	}
	return t, kills, err
}

// runAndKillWorkers keeps the workers running until ctx ends, and kills one of them after each pause.
func runAndKillWorkers(ctx context.Context, url, socket string) (kills int, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	type worker struct {
		cmd    *exec.Cmd
		exited <-chan struct{}
		said   *outputEnd
	}
	start := func() (w worker, err error) {
		w.cmd, w.said = exec.Command(program), new(outputEnd)
		w.cmd.Env = append(os.Environ(), workerVariable+"="+url, socketVariable+"="+socket)
		w.cmd.Stderr = w.said
		w.exited, err = child.Start(w.cmd, syscall.SIGKILL)
		return w, err
	}
	var workers [hammerWorkers]worker
	defer func() {
		for _, w := range workers {
			if w.exited != nil {
				w.cmd.Process.Kill()
				<-w.exited
			}
		}
	}()
	for i := range workers {
		if workers[i], err = start(); err != nil {
			return 0, err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return kills, nil
		case <-time.After(killPause):
		}
		for _, w := range workers {
			select {
			case <-w.exited:
				return kills, fmt.Errorf("a worker ended by itself (%v): %s", w.cmd.ProcessState, w.said)
			default:
			}
		}
		i := rand.IntN(len(workers))
		workers[i].cmd.Process.Kill()
		<-workers[i].exited
		kills++
		if workers[i], err = start(); err != nil {
			return kills, err
		}
	}
}

// outputEnd keeps the end of a worker's output.
type outputEnd struct {
	mu   sync.Mutex
	text []byte
}

func (l *outputEnd) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.text = l.text[max(0, len(l.text)-1000):]
	return len(p), nil
}

func (l *outputEnd) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// serveCounter answers one worker until it disconnects: "enter KEY TOKEN" with the value or "stale", "leave KEY
// VALUE" with "ok" or "stale".
func serveCounter(conn io.ReadWriter, client int, counters []*counter) {
	defer func() {
		for _, c := range counters {
			c.removeHolder(client)
		}
	}()
	in := bufio.NewReader(conn)
	for {
		var verb string
		var key int
		var n int64
		if _, err := fmt.Fscanln(in, &verb, &key, &n); err != nil || key < 0 || key >= len(counters) {
			return
		}
		answer := "stale"
		switch verb {
		case "enter":
			if value, ok := counters[key].enterHolder(client, n); ok {
				answer = fmt.Sprint(value)
			}
		case "leave":
			if counters[key].writeValue(client, int(n)) {
				answer = "ok"
			}
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return
		}
	}
}

// runWorker acquires locks and increments their counters until the worker is killed.
func runWorker(ctx context.Context) error {
	conn, err := net.Dial("unix", os.Getenv(socketVariable))
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	ask := func(verb string, key int, n int64) (answer string, err error) {
		if _, err = fmt.Fprintln(conn, verb, key, n); err == nil {
			_, err = fmt.Fscanln(in, &answer)
		}
		return answer, err
	}
	var c *holdfast.Client
	if c, err = holdfast.Open(ctx, os.Getenv(workerVariable), nil); err != nil {
		return err
	}
	defer c.Close()
	for {
		key := rand.IntN(hammerKeys)
		l, err := c.Acquire(ctx, fmt.Sprintf("servers:hammer:%d", key), shortLease)
		if err != nil {
			return err
		}
		answer, err := ask("enter", key, int64(l.Token()))
		if err != nil {
			return nil // the run is over
		}
		if answer != "stale" {
			var value int64
			fmt.Sscan(answer, &value)
			time.Sleep(rand.N(3 * time.Millisecond)) // think time
			if _, err := ask("leave", key, value+1); err != nil {
				return nil
			}
		}
		l.Release(ctx) // after an error the lease ends by itself
	}
}
