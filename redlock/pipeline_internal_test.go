package redlock

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/quorum"
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
