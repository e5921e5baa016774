package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// The MySQL driver trusts the server: it keeps packets of any length, allocates as many columns as an answer
// announces, and panics on some packets that are too short. Without TLS, an attacker on the network can act as
// the server. So the connections of Open bound the answers that the driver reads, and a panic of the driver
// ends one connection, not the program.

// maxAnswer bounds an answer, in bytes. The longest is a page of List.
const maxAnswer = 8 << 20

var (
	errEndless = fmt.Errorf("the answer has more than %d MB; look what answers at this address", maxAnswer>>20)
	errColumns = errors.New("the answer announces more columns than any answer here has; look what answers at this address")
)

// limitedConn is a connection that closes if an answer is longer than maxAnswer.
type limitedConn struct {
	net.Conn
	plain bool                  // no TLS: packets can be inspected here
	read  atomic.Int64          // bytes since the last write
	cut   atomic.Pointer[error] // why Read closed the connection; nil: it did not

	// Only Read uses the fields below.

	head []byte // header of the current packet: length (3 bytes), number, first byte of the body
	rest int    // remaining bytes of the packet
}

// Write implements net.Conn.
func (w *limitedConn) Write(b []byte) (int, error) {
	w.read.Store(0)
	return w.Conn.Write(b)
}

// Read implements net.Conn.
func (w *limitedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if w.read.Add(int64(n)) > maxAnswer {
		err = errEndless
	}
	if w.plain && err == nil {
		err = w.inspectPackets(b[:n])
	}
	if errors.Is(err, errEndless) || errors.Is(err, errColumns) {
		w.cut.Store(&err)
		w.Conn.Close()
		return 0, err
	}
	return n, err
}

// inspectPackets follows the packets in b. It returns an error for a packet that would make the driver
// allocate too much.
func (w *limitedConn) inspectPackets(b []byte) error {
	for len(b) > 0 {
		if w.rest > 0 {
			n := min(w.rest, len(b))
			w.rest, b = w.rest-n, b[n:]
			continue
		}
		w.head, b = append(w.head, b[0]), b[1:]
		length := func() int { return int(w.head[0]) | int(w.head[1])<<8 | int(w.head[2])<<16 }
		switch {
		case len(w.head) == 3 && length() > maxAnswer:
			return errEndless
		case len(w.head) == 4 && length() == 0:
			w.head = w.head[:0]
		case len(w.head) == 5:
			// The first packet after a statement begins with the number of columns. From 251 on, that takes
			// several bytes.
			if number, first := w.head[3], w.head[4]; number == 1 && first >= 0xfc && first <= 0xfe {
				return errColumns
			}
			w.rest, w.head = length()-1, w.head[:0]
		}
	}
	return nil
}

// SyscallConn implements syscall.Conn: the driver uses it to check whether the server has closed an idle
// connection.
func (w *limitedConn) SyscallConn() (syscall.RawConn, error) {
	if c, ok := w.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// wireKey is the context key by which Connect receives the wire that it dials.
type wireKey struct{}

// newDialer returns a function that dials a wire.
func newDialer(plain bool) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetKeepAlive(true) // as the driver does for connections that it dials
		}
		w := &limitedConn{Conn: conn, plain: plain}
		if at, ok := ctx.Value(wireKey{}).(**limitedConn); ok {
			*at = w
		}
		return w, nil
	}
}

// connection has the methods of a connection of the MySQL driver.
type connection interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.Validator
	sqldriver.NamedValueChecker
}

// connectGuarded opens a guarded connection.
func connectGuarded(ctx context.Context, connector sqldriver.Connector) (sqldriver.Conn, error) {
	g := &guardedConn{}
	err := g.callGuarded(func() error {
		conn, err := connector.Connect(context.WithValue(ctx, wireKey{}, &g.wire))
		if err == nil {
			g.connection = conn.(connection)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// guardedConn is a connection on which a panic ends only the connection.
type guardedConn struct {
	connection
	wire  *limitedConn
	fault atomic.Bool
}

// callGuarded calls fn. If fn panics, callGuarded closes the connection and returns an error as for a connection that broke.
func (g *guardedConn) callGuarded(fn func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			g.fault.Store(true)
			if g.wire != nil {
				g.wire.Close()
			}
			err = fmt.Errorf("%w: the server's answer makes no sense (%v); look what answers at this address", mysql.ErrInvalidConn, fault)
		}
	}()
	err = fn()
	if g.wire != nil && err != nil && !errors.Is(err, io.EOF) {
		if cut := g.wire.cut.Load(); cut != nil { // the driver drops this reason
			err = fmt.Errorf("%w: %w", err, *cut)
		}
	}
	return err
}

// BeginTx implements sqldriver.ConnBeginTx.
func (g *guardedConn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (tx sqldriver.Tx, err error) {
	err = g.callGuarded(func() (err error) { tx, err = g.connection.BeginTx(ctx, opts); return err })
	if err != nil {
		return nil, err
	}
	return guardedTx{tx, g}, nil
}

// PrepareContext implements sqldriver.ConnPrepareContext. Values are interpolated, so that no statement is prepared here.
func (g *guardedConn) PrepareContext(context.Context, string) (sqldriver.Stmt, error) {
	return nil, errors.ErrUnsupported
}

// ExecContext implements sqldriver.ExecerContext.
func (g *guardedConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (result sqldriver.Result, err error) {
	err = g.callGuarded(func() (err error) { result, err = g.connection.ExecContext(ctx, query, args); return err })
	return result, err
}

// QueryContext implements sqldriver.QueryerContext.
func (g *guardedConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	err = g.callGuarded(func() (err error) { rows, err = g.connection.QueryContext(ctx, query, args); return err })
	if err != nil {
		return nil, err
	}
	return &guardedRows{rows, g}, nil
}

// Ping implements sqldriver.Pinger.
func (g *guardedConn) Ping(ctx context.Context) error {
	return g.callGuarded(func() error { return g.connection.Ping(ctx) })
}

// Close implements sqldriver.Conn.
func (g *guardedConn) Close() error { return g.callGuarded(g.connection.Close) }

// IsValid implements sqldriver.Validator.
func (g *guardedConn) IsValid() bool { return !g.fault.Load() && g.connection.IsValid() }

// guardedTx is a transaction of a guarded connection.
type guardedTx struct {
	sqldriver.Tx
	on *guardedConn
}

// Commit implements sqldriver.Tx.
func (t guardedTx) Commit() error { return t.on.callGuarded(t.Tx.Commit) }

// Rollback implements sqldriver.Tx.
func (t guardedTx) Rollback() error { return t.on.callGuarded(t.Tx.Rollback) }

// guardedRows are rows of a guarded connection.
type guardedRows struct {
	sqldriver.Rows
	on *guardedConn
}

// Next implements sqldriver.Rows.
func (r *guardedRows) Next(dest []sqldriver.Value) error {
	return r.on.callGuarded(func() error { return r.Rows.Next(dest) })
}

// Close implements sqldriver.Rows.
func (r *guardedRows) Close() error { return r.on.callGuarded(r.Rows.Close) }
