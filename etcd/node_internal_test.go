package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// silentConn accepts writes and never returns data.
type silentConn struct {
	net.Conn
	closed chan struct{}
	close  func()
}

func dialSilent(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	far.Close()
	c := &silentConn{Conn: near, closed: make(chan struct{})}
	c.close = sync.OnceFunc(func() { close(c.closed) })
	return c, nil
}

func (c *silentConn) Write(b []byte) (int, error) { return len(b), nil }

func (c *silentConn) Read([]byte) (int, error) {
	<-c.closed
	return 0, net.ErrClosed
}

func (c *silentConn) Close() error {
	c.close()
	return nil
}

// If the client drops the connection before the request, the error names neither TLS nor a missing TLS.
func TestHangingMemberIsNotTLSError(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*Options{"plain": {}, "TLS": {TLS: &tls.Config{InsecureSkipVerify: true}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				opts.dial = dialSilent
				n, err := newNode(t.Context(), 0, "silent:2379", "", opts, &clusterIDs{ids: make([]uint64, 1)})
				if err != nil {
					t.Fatal(err)
				}
				defer n.close()
				err = n.tryRequest(t.Context(), 3*pace.CallTime(), n.probe)
				if _, stalled := errors.AsType[driverkit.StallError](err); !stalled || err.Error() != "no answer in "+pace.CallTime().String() {
					t.Errorf("stalled %v: %v", stalled, err)
				}
			})
		})
	}
}
