package redisproc

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/resp"
)

const doTimeout = 5 * time.Second

// Do sends one command over a new connection, as the default user, and returns its reply: nil, string, int64
// or a list of these. An error reply is returned as an error. It blocks at most for five seconds, and keeps no
// state between calls.
func (s *Server) Do(args ...string) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pace.Scale(doTimeout))
	defer cancel()
	replies, err := s.exchangeBatch(ctx, args)
	if err == nil {
		err, _ = replies[0].(error)
	}
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", args[0], s.Addr(), err)
	}
	return replies[0], nil
}

// exchangeBatch sends commands in one batch, after AUTH if there is a password, and returns a reply for each.
// Error replies are returned as resp.Error among them.
func (s *Server) exchangeBatch(ctx context.Context, commands ...[]string) ([]any, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	if s.opts.Password != "" {
		commands = append([][]string{{"AUTH", s.opts.Password}}, commands...)
	}
	values, err := resp.NewConn(conn).Do(commands...)
	if err != nil {
		return nil, err
	}
	if s.opts.Password != "" {
		if values[0].IsError() {
			return nil, fmt.Errorf("AUTH: %s", values[0].Text)
		}
		values = values[1:]
	}
	replies := make([]any, len(values))
	for i, v := range values {
		replies[i] = v.Decode()
	}
	return replies, nil
}

func (s *Server) dial(ctx context.Context) (net.Conn, error) {
	if s.opts.TLS == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	}
	config, err := s.opts.TLS.Client()
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", s.Addr())
}

// refusesDefaultUser recognises the answers of a server whose ACL rejects the default user, which checkReady
// and Do use.
func refusesDefaultUser(reply any) bool {
	err, ok := reply.(resp.Error)
	return ok && (strings.HasPrefix(string(err), "NOAUTH ") || strings.HasPrefix(string(err), "NOPERM "))
}
