package redis_test

import (
	"bytes"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis"
)

// relay passes commands to a server one by one, like proxies that understand them. The test can change the
// answers on each connection. It delivers no messages to subscribers.
type relay struct {
	testing.TB
	listener net.Listener
	server   atomic.Pointer[string]
	// answer may answer for the server; nil: it does not. subscribed reports whether the connection is
	// subscribed.
	answer func(words []string, subscribed bool) []byte
	// edit changes replies; nil: it does not.
	edit func(words []string, reply []byte) []byte
}

func newRelay(t testing.TB, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{TB: t, listener: l}
	r.server.Store(&server)
	t.Cleanup(func() { l.Close() })
	return r
}

func (r *relay) start() *relay {
	go func() {
		for {
			client, err := r.listener.Accept()
			if err != nil {
				return
			}
			go r.serve(client)
		}
	}()
	return r
}

func (r *relay) node() redis.Node { return redis.Node{Addr: r.listener.Addr().String()} }

// upstream is a connection of the relay to a server.
type upstream struct {
	net.Conn
	in   *resp.Reader
	addr string
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	in := resp.NewReader(client)
	var up *upstream
	defer func() {
		if up != nil {
			up.Close()
		}
	}()
	subscribed := false
	for {
		args, raw, err := in.ReadCommand()
		if err != nil {
			return
		}
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = string(a)
		}
		words[0] = strings.ToUpper(words[0])
		var reply []byte
		if r.answer != nil {
			reply = r.answer(words, subscribed)
		}
		if reply == nil {
			if up, err = r.to(up); err != nil {
				return
			}
			if reply, err = up.ask(words[0], raw); err != nil {
				return
			}
			if r.edit != nil {
				reply = r.edit(words, reply)
			}
		}
		switch words[0] {
		case "SUBSCRIBE":
			subscribed = true
		case "UNSUBSCRIBE":
			subscribed = false
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// to returns a connection to the present server, which can change during the client's connection.
func (r *relay) to(up *upstream) (*upstream, error) {
	addr := *r.server.Load()
	if up != nil && up.addr == addr {
		return up, nil
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return up, err
	}
	next := &upstream{Conn: conn, in: resp.NewReader(conn), addr: addr}
	if up == nil {
		return next, nil
	}
	up.Close()
	_, err = next.ask("HELLO", resp.AppendCommand(nil, "HELLO", "3"))
	return next, err
}

// ask returns the reply to one command.
func (u *upstream) ask(verb string, raw []byte) ([]byte, error) {
	if _, err := u.Write(raw); err != nil {
		return nil, err
	}
	for {
		v, err := u.in.ReadValue()
		if err != nil || v.Kind != '>' || strings.HasSuffix(verb, "SUBSCRIBE") {
			return v.Raw, err
		}
	}
}

// answerInRESP2 makes the server of the relay speak RESP2.
func answerInRESP2(words []string, reply []byte) []byte {
	if words[0] == "HELLO" {
		return bytes.Replace(reply, []byte("$5\r\nproto\r\n:3"), []byte("$5\r\nproto\r\n:2"), 1)
	}
	return reply
}

// answerWhileSubscribed answers a command over a subscribed connection like some servers and proxies do.
func answerWhileSubscribed(words []string, subscribed bool) []byte {
	if subscribed && !strings.HasSuffix(words[0], "SUBSCRIBE") && words[0] != "PING" {
		return []byte("-ERR Can't execute '" + words[0] + "': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT are allowed in this context\r\n")
	}
	return nil
}
