package place_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// A client that is closed while Sentinels may still answer must not trust a minority.
func TestCancelledSearchRejectsSentinelMinority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
			if addr != "a:26379" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				if _, _, err := resp.NewReader(far).ReadCommand(); err == nil {
					far.Write(resp.AppendCommand(nil, "stranger", "6379"))
				}
			}()
			return near, nil
		}
		m := &place.Master{
			Fixed:     place.Fixed{Net: &place.Net{Dialer: server.Dialer{Dial: dial}, Timeout: time.Second}},
			Sentinels: []string{"a:26379", "b:26379", "c:26379"}, Watched: "m",
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if addr, err := m.Locate(ctx); err == nil {
			t.Errorf("master = %s", addr)
		}
	})
}
