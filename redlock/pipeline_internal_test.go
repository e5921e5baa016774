package redlock

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// What is sent to look after the connection must not take the reading from a caller
// who is alone: that would cost him the wake-up of another goroutine until the next
// look, a quarter of the time.
func TestAPingIsNoCompany(t *testing.T) {
	t.Parallel()
	var l link
	l.flight.push(entry{req: &engine.Request{Kind: quorum.AskAcquire}})
	l.flight.push(entry{call: newCall([][]string{{"PING"}})})
	if l.several() {
		t.Error("a request and a PING count as several requests")
	}
	l.flight.push(entry{req: &engine.Request{Kind: quorum.AskAcquire}})
	if !l.several() {
		t.Error("two requests do not count as several")
	}
}

// The deadline that a caller reads under is for the beginning of an answer, also
// where it was set for the answer before.
func TestAnAnswerInPiecesIsAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		l := newLink(nil, &line{conn: ours, in: resp.NewReader(ours)})
		c := newCall([][]string{{"first"}, {"second"}})
		l.flight.push(entry{call: c})
		go func() {
			theirs.Write([]byte(":1\r\n*1\r\n"))
			time.Sleep(2 * attendMost)
			theirs.Write([]byte(":2\r\n"))
		}()
		for len(c.replies) < 2 {
			if err := l.await(); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.await(); !errors.Is(err, os.ErrDeadlineExceeded) || l.err != nil {
			t.Errorf("while nothing comes: %v, the link %v", err, l.err)
		}
	})
}
