package faultproxy

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// The proxy forwards all requests of a row before the first value arrives.
func TestRepliesMatchRequests(t *testing.T) {
	t.Parallel()
	const push = "push" // a push without a request
	for _, c := range []struct {
		name     string
		requests []string
		values   []string // each with the request it belongs to; "..." after it: more will follow
	}{
		{"in order", []string{"GET a", "GET b"}, []string{"$-1 GET a", ":1 GET b"}},
		{"before any request", nil, []string{"-ERR push"}},
		{"RESP3 message", []string{"GET a"}, []string{">3 message a x push", "+v GET a"}},
		{"invalidation", []string{"GET a"}, []string{">2 invalidate k push", "_ GET a"}},
		{"list that looks like a message", []string{"LRANGE l 0 -1"}, []string{"*3 message a b LRANGE l 0 -1"}},
		{"one confirmation each", []string{"SUBSCRIBE a b", "PING"}, []string{
			">3 subscribe a :1 SUBSCRIBE a b...", ">3 message a x push", ">3 subscribe b :2 SUBSCRIBE a b", "+PONG PING",
		}},
		{"refused", []string{"SUBSCRIBE a b", "PING"}, []string{"-NOPERM SUBSCRIBE a b", "+PONG PING"}},
		{"no longer a subscriber", []string{"subscribe a", "UNSUBSCRIBE a", "PING"}, []string{
			">3 subscribe a :1 subscribe a", ">3 message a x push", ">3 unsubscribe a :0 UNSUBSCRIBE a", "+PONG PING",
		}},
	} {
		conn := &conn{}
		for _, words := range c.requests {
			r := &request{}
			for word := range strings.FieldsSeq(words) {
				r.args = append(r.args, []byte(word))
			}
			r.noteExpectedReply()
			conn.pending = append(conn.pending, r)
		}
		for i, row := range c.values {
			v, want := parseRow(t, row)
			got := push
			if r := conn.answeredRequest(v); r != nil {
				words := make([]string, len(r.args))
				for i, arg := range r.args {
					words[i] = string(arg)
				}
				got = strings.Join(words, " ")
				if r.answered {
					conn.pending = conn.pending[1:]
				} else {
					got += "..."
				}
			}
			if got != want {
				t.Errorf("%s: value %d (%s) is classified as %s", c.name, i, row, got)
			}
		}
		if len(conn.pending) > 0 {
			t.Errorf("%s: %d requests are left", c.name, len(conn.pending))
		}
	}
}

// parseRow parses "*3 elem elem elem rest" or "scalar rest".
func parseRow(t *testing.T, row string) (v resp.Value, rest string) {
	t.Helper()
	words := strings.Fields(row)
	n := 1
	if strings.Contains("*>", row[:1]) {
		n += int(words[0][1] - '0')
	}
	lines := slices.Clone(words[:n])
	for i, line := range lines[1:] {
		if !strings.Contains(":_", line[:1]) {
			lines[i+1] = "+" + line
		}
	}
	v, err := resp.NewReader(strings.NewReader(strings.Join(lines, "\r\n") + "\r\n")).ReadValue()
	if err != nil {
		t.Fatalf("%s: %v", row, err)
	}
	return v, strings.Join(words[n:], " ")
}

func TestClosedConnectionIsForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	p, err := New(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	lost := p.MuteAfter(Command("MUTED"), 1)
	for _, command := range []string{"PING", "MUTED", "QUIT"} {
		client, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		client.Write(resp.AppendCommand(nil, command))
		if command == "MUTED" {
			<-lost
			server.Kill() // also ends the first
			client.Close()
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		left := len(p.conns)
		p.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left", left)
		}
	}
}
