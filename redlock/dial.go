package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// dial opens a connection to a node and checks the node over it.
func (g *gate) dial(ctx context.Context, n *node) (*resp.Conn, report, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	server, err := g.locate(ctx, n)
	if err != nil {
		return nil, report{}, err
	}
	l, err := g.connect(ctx, server)
	if err != nil {
		return nil, report{}, n.at(server, mend(err, g.opts.TLS != nil))
	}
	unblock := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	rep, err := g.check(ctx, n, server, l)
	if !unblock() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_, secure := l.Conn.(*tls.Conn) // Dial may have made it so
		l.Close()
		g.leave(n.addr)
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer before the timeout: %w", ctx.Err())
		}
		return nil, rep, n.at(server, mend(err, secure))
	}
	return l, rep, nil
}

// keepAlive is for connections that carry nothing: a lost one shows by the pings.
var keepAlive = net.Dialer{KeepAlive: time.Second}

func (g *gate) connect(ctx context.Context, addr string) (*resp.Conn, error) {
	open := keepAlive.DialContext
	if g.opts.Dial != nil {
		open = g.opts.Dial
	}
	network := "tcp"
	if isSocket(addr) {
		network = "unix"
	}
	plain, err := open(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if plain == nil {
		return nil, errors.New("Options.Dial returned neither a connection nor an error")
	}
	cfg := g.opts.TLS
	if cfg == nil {
		return resp.NewConn(plain), nil
	}
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(plain, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return resp.NewConn(secure), nil
}

// ask sends the commands at once and returns their replies, of which none is an error.
func ask(l *resp.Conn, cmds ...[]string) ([]resp.Value, error) {
	values, err := l.Do(cmds...)
	if err != nil {
		return nil, err
	}
	return values, firstError(cmds, values)
}

// firstError is the first error reply, with the command it answers.
func firstError(cmds [][]string, values []resp.Value) error {
	for i, v := range values {
		if v.IsError() {
			return fmt.Errorf("%s: %w", cmds[i][0], v.Decode().(resp.Error))
		}
	}
	return nil
}

// login gives the credentials, and makes the settings that a connection needs only
// once.
func (g *gate) login(ctx context.Context, n *node, server string, l *resp.Conn) (hello map[string]string, err error) {
	user, pass, err := n.credentials(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err) // their source may be down for a while
	}
	cmds := auth(user, pass)
	greets := len(cmds)
	cmds = append(cmds, []string{"HELLO", "3", "SETNAME", g.opts.ClientName}) // 3: wake-ups come between replies
	if g.opts.DB != 0 {
		cmds = append(cmds, []string{"SELECT", strconv.Itoa(g.opts.DB)})
	}
	values, err := l.Do(cmds...)
	if err != nil {
		return nil, err
	}
	if v := values[greets]; v.IsError() && code(v.Text) == "NOPROTO" { // it knows RESP2 alone, with which waiters poll
		if _, err := l.Do([]string{"CLIENT", "SETNAME", g.opts.ClientName}); err != nil {
			return nil, err
		}
		values[greets] = resp.Value{}
	}
	hello = parseMap(values[greets])
	if err := g.opts.strange(hello["mode"], "", nil); err != nil {
		return nil, err // it says more than the missing fields would
	}
	return hello, firstError(cmds, values)
}

// auth are the commands that give user and password, if there are any.
func auth(user, pass string) [][]string {
	switch {
	case user != "":
		return [][]string{{"AUTH", user, pass}}
	case pass != "":
		return [][]string{{"AUTH", pass}}
	}
	return nil
}

// parseMap reads a map, such as HELLO answers with.
func parseMap(v resp.Value) map[string]string {
	fields := make(map[string]string)
	for i := 0; i+1 < len(v.Elems); i += 2 {
		fields[string(v.Elems[i].Text)] = string(v.Elems[i+1].Text)
	}
	return fields
}
