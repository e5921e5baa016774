package redis_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/redis"
)

// A user's Dial may ignore its context.
func TestCloseStopsDialing(t *testing.T) {
	r := startRig(t, 1)
	var dialled atomic.Int32
	d := r.openDriver(r.nodes(), &redis.Options{Dial: func(_ context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		return net.Dial(network, addr)
	}})
	before := dialled.Load()
	if err := d.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if n := dialled.Load() - before; n != 0 {
		t.Errorf("%d connections were made", n)
	}
}
