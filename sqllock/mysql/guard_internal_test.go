package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// faultyConn panics while the driver reads an answer.
type faultyConn struct{ connection }

func (faultyConn) QueryContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Rows, error) {
	panic("an answer that is too short")
}
func (faultyConn) IsValid() bool { return true }

// Many small packets also count as one endless answer, unlike answers to separate statements.
func TestEndlessAnswerReturnsError(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{false, true} {
		near, far := net.Pipe()
		go func() {
			packet := append([]byte{0, 64, 0, 4}, make([]byte, 1<<14)...)
			for _, err := far.Write(packet); err == nil; {
				_, err = far.Write(packet)
			}
		}()
		go io.Copy(io.Discard, far)
		w := &limitedConn{Conn: near, plain: true}
		total := 0
		for b := make([]byte, 4096); total < 3*maxAnswer; {
			n, err := w.Read(b)
			if total += n; err != nil {
				if asks || !errors.Is(err, errEndless) || total > maxAnswer {
					t.Errorf("after %d bytes: %v", total, err)
				}
				break
			}
			if asks {
				w.Write([]byte{0})
			}
		}
		if !asks && total >= 3*maxAnswer {
			t.Error("an endless answer is still read")
		}
		near.Close()
		far.Close()
	}
}

// The pool does not use that connection again, and the program continues.
func TestPanicEndsOneConnection(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	g := &guardedConn{connection: faultyConn{}, wire: &limitedConn{Conn: near}}
	_, err := g.QueryContext(t.Context(), "SELECT 1", nil)
	if !errors.Is(err, mysql.ErrInvalidConn) || g.IsValid() {
		t.Errorf("QueryContext() = %v, valid: %v; want a connection that broke", err, g.IsValid())
	}
	if _, err := far.Write([]byte{0}); err == nil {
		t.Error("the connection is still open")
	}
}
