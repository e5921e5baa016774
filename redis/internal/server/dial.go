package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/format"
)

// Dialer opens connections to servers.
type Dialer struct {
	Dial       func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the standard library's
	TLS        *tls.Config                                                       // nil: none
	Fresh      func(*tls.Config) (*tls.Config, error)                            // returns the TLS configuration for one connection; nil: TLS for all
	ClientName string
	DB         int
}

// keepAlive sends pings over idle connections, which reveal a lost one.
var keepAlive = net.Dialer{KeepAlive: time.Second}

// Connect opens a connection without a login. Its errors contain no advice.
func (d *Dialer) Connect(ctx context.Context, addr string) (*resp.Conn, error) {
	open := keepAlive.DialContext
	if d.Dial != nil {
		open = d.dialAside
	}
	network := "tcp"
	if IsSocket(addr) {
		network = "unix"
	}
	plain, err := open(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if plain == nil {
		return nil, errors.New("Options.Dial returned neither a connection nor an error")
	}
	cfg := d.TLS
	if cfg == nil {
		return resp.NewConn(plain), nil
	}
	if d.Fresh != nil {
		if cfg, err = d.Fresh(cfg); err != nil {
			plain.Close()
			return nil, err
		}
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

// dialAside calls Dial until ctx ends, and closes a connection that Dial returns later.
func (d *Dialer) dialAside(ctx context.Context, network, addr string) (net.Conn, error) {
	return driverkit.CallUserFunc(ctx, func() (net.Conn, error) { return d.Dial(ctx, network, addr) }, func(conn net.Conn) {
		if conn != nil {
			conn.Close()
		}
	})
}

// Visit opens a connection to addr, calls fn with it until ctx ends, and closes it. Its errors contain advice.
func (d *Dialer) Visit(ctx context.Context, addr string, fn func(l *resp.Conn) error) error {
	l, err := d.Connect(ctx, addr)
	if err == nil {
		defer l.Close()
		defer context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })()
		err = resp.CatchPanic(func() error { return fn(l) })
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return LateError(ctx, err)
	}
	return AddAdvice(err, d.TLS != nil)
}

// Ask sends the commands at once and returns their replies. An error reply is returned as err.
func Ask(l *resp.Conn, cmds ...[]string) ([]resp.Value, error) {
	values, err := l.Do(cmds...)
	if err != nil {
		return nil, err
	}
	return values, FirstError(cmds, values)
}

// FirstError returns the first error reply, with its command.
func FirstError(cmds [][]string, values []resp.Value) error {
	for i, v := range values {
		if v.IsError() {
			return fmt.Errorf("%s: %w", cmds[i][0], v.Decode().(resp.Error))
		}
	}
	return nil
}

// Login sends the credentials and the settings of the connection. It returns the reply to HELLO, also with an
// error if the server gave one.
func (d *Dialer) Login(l *resp.Conn, user, pass string) (hello map[string]string, err error) {
	cmds := AuthCommands(user, pass)
	greets := len(cmds)
	cmds = append(cmds, []string{"HELLO", "3", "SETNAME", d.ClientName}) // 3: wake-ups come between replies
	if d.DB != 0 {
		cmds = append(cmds, []string{"SELECT", strconv.Itoa(d.DB)})
	}
	values, err := l.Do(cmds...)
	if err != nil {
		return nil, err
	}
	if v := values[greets]; v.IsError() && format.ErrorCode(v.Text) == "NOPROTO" { // it knows only RESP2, with which waiters poll
		if _, err := l.Do([]string{"CLIENT", "SETNAME", d.ClientName}); err != nil {
			return nil, err
		}
		values[greets] = resp.Value{}
	}
	if err = FirstError(cmds, values); err != nil && IsUnknownCommand(string(values[greets].Text)) && (greets == 0 || !values[0].IsError()) {
		err = helloError(l, err)
	}
	return ParseMap(values[greets]), err
}

// helloError returns the reason why a server does not know HELLO.
func helloError(l *resp.Conn, refused error) error {
	values, err := l.Do([]string{"INFO", "server"})
	if err != nil {
		return err
	}
	switch version := ParseInfo(string(values[0].Text))["redis_version"]; {
	case IsTooOld(version):
		return UnfitError("give Redis 6 or newer, or Valkey", "%w: it is Redis %s, which is older than Redis 6", refused, version)
	case version == "":
		return UnfitError("give Redis 6 or newer, or Valkey, which has it under its own name",
			"%w: it is older than Redis 6, or the command was renamed, or a proxy does not know it", refused)
	}
	return refused // AddAdvice explains it
}

// IsTooOld reports whether a server of this version is too old for locks.
func IsTooOld(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < 6
}

// AuthCommands returns the commands that send user and password, if there are any.
func AuthCommands(user, pass string) [][]string {
	switch {
	case user != "":
		return [][]string{{"AUTH", user, pass}}
	case pass != "":
		return [][]string{{"AUTH", pass}}
	}
	return nil
}

// ParseMap parses a map, such as the reply to HELLO.
func ParseMap(v resp.Value) map[string]string {
	fields := make(map[string]string)
	for i := 0; i+1 < len(v.Elems); i += 2 {
		fields[string(v.Elems[i].Text)] = string(v.Elems[i+1].Text)
	}
	return fields
}

// IsSocket reports whether an address is the path of a unix socket.
func IsSocket(addr string) bool {
	return len(addr) > 1 && addr[0] == '/' && !strings.ContainsFunc(addr, unicode.IsControl)
}
