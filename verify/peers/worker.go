//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// serveLibrary runs the workers of a library in Go until standard input ends. Its programs in other languages
// (verify/interop: holder.py, holder.cjs, Holder.java) speak the same protocol, a line each way:
//
//	<- ready VERSION            all workers have a client each
//	-> 0 lock 1000              worker 0 waits for the lock for at most 1000 ms, as far as its library can bound that
//	<- 0 = held
//	-> 1 try                    worker 1 asks once
//	<- 1 = no: taken
//	<- 0 ! lost                 the library has told worker 0, unasked, that its lock is lost
//	-> 0 check                  worker 0 asks its library whether the lock is still held
//	<- 0 = held
//	-> 0 unlock
//	<- 0 = ok
func serveLibrary(library, addr, key string, n int) error {
	open := goLibraries[library]
	if open == nil {
		return fmt.Errorf("unknown library %q", library)
	}
	out := &linePrinter{}
	var commands []chan []string
	for i := range n {
		t, err := open(context.Background(), addr, key)
		if err != nil {
			return err
		}
		c := make(chan []string)
		commands = append(commands, c)
		go executeCommands(i, t, c, out)
	}
	out.printLine("ready", goVersion(library))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		i, err := strconv.Atoi(words[0])
		if err != nil || i >= n {
			return fmt.Errorf("bad command %q", in.Text())
		}
		commands[i] <- words[1:]
	}
	return in.Err()
}

// linePrinter prints whole lines from several goroutines.
type linePrinter struct{ mu sync.Mutex }

func (l *linePrinter) printLine(words ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	io.WriteString(os.Stdout, strings.Join(words, " ")+"\n")
}

// executeCommands runs the commands of one worker in order.
func executeCommands(id int, t takeFunc, commands <-chan []string, out *linePrinter) {
	name := strconv.Itoa(id)
	var h *heldLock
	var released chan struct{}
	for words := range commands {
		var err error
		answer := "ok"
		switch words[0] {
		case "lock", "try":
			if h, err = takeBounded(t, words); err != nil {
				answer = "no: " + errorText(err)
				break
			}
			answer = "held"
			if h.lost != nil {
				released = make(chan struct{})
				go notifyLoss(h.lost, released, func() { out.printLine(name, "!", "lost") })
			}
		case "check":
			var held bool
			held, err = h.check(context.Background())
			switch {
			case errors.Is(err, errNoCheck):
				answer = "none"
			case err != nil:
				answer = "error: " + errorText(err)
			case held:
				answer = "held"
			default:
				answer = "lost"
			}
		case "unlock":
			if h.lost != nil {
				close(released) // the end that follows is no loss
			}
			if err = h.release(context.Background()); err != nil {
				answer = "error: " + errorText(err)
			}
		}
		out.printLine(name, "=", answer)
	}
}

// notifyLoss calls notify if the lock is lost before its release.
func notifyLoss(lost <-chan struct{}, released <-chan struct{}, notify func()) {
	select {
	case <-released:
	case <-lost:
		select {
		case <-released:
		default:
			notify()
		}
	}
}

// takeBounded acquires the lock within the limit in a command's words, and then ends the context of the call.
func takeBounded(t takeFunc, words []string) (*heldLock, error) {
	limit := 30 * time.Second
	if len(words) > 1 {
		ms, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, err
		}
		limit = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return t(ctx, words[0] == "lock")
}

// errorText returns an error in one line, or the name of the Holdfast error that it matches.
func errorText(err error) string {
	for _, known := range []struct {
		name string
		err  error
	}{{"ErrLost", holdfast.ErrLost}, {"ErrHeld", holdfast.ErrHeld}, {"ErrUnavailable", holdfast.ErrUnavailable}} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
