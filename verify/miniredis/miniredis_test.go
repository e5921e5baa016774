package miniredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redis"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// unorderedDriver is a driver with the limits that it has on miniredis.
type unorderedDriver struct{ *redis.Driver }

func (u unorderedDriver) Limits() driver.Limits {
	limits := u.Driver.Limits()
	limits.Order = false // waiters that poll have no place in a queue
	return limits
}

// The test runs the suite of all drivers, in virtual time and over in-memory connections, as users' tests can.
func TestMiniredisKeepsPromisesExceptOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("-short goes through the suite on servers of Redis, and leaves out ten seconds of a processor")
	}
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service {
		m := startServer(t)
		return locktest.Service{
			Nodes:    1,
			NoAlerts: true,
			Open: func() (driver.Driver, error) {
				d, err := redis.New(t.Context(), []redis.Node{{Addr: "miniredis:6379"}}, &redis.Options{Dial: dialServer(m)})
				return unorderedDriver{d}, err
			},
			Leftovers: func() (left []string, err error) {
				for _, key := range m.Keys() {
					queue := strings.HasPrefix(key, "holdfast:queue:")
					if queue { // the note of a force-release or adoption stays for a while
						members, err := m.ZMembers(key)
						queue = err != nil || slices.ContainsFunc(members, func(m string) bool { return !strings.HasPrefix(m, "~") })
					}
					if strings.HasPrefix(key, "lock:") || queue {
						left = append(left, key)
					}
				}
				return left, nil
			},
		}
	}})
}

// startServer returns a server whose keys expire by the test's clock.
func startServer(t testing.TB) *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	return m
}

// dialServer connects to m in memory, without a port.
func dialServer(m *miniredis.Miniredis) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) { return m.Dial() }
}

// log collects the output of a Logger.
type log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) countWord(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), word)
}

func TestMissingWakeUpsAreReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, said := startServer(t), &log{}
		var dialled atomic.Int32
		var last atomic.Pointer[net.Conn]
		opts := &redis.Options{
			Logger: slog.New(slog.NewTextHandler(said, nil)),
			Dial: func(context.Context, string, string) (net.Conn, error) {
				conn, err := m.Dial()
				last.Store(&conn)
				dialled.Add(1)
				return conn, err
			},
		}
		drv, err := redis.New(t.Context(), []redis.Node{{Addr: "miniredis:6379"}}, opts)
		if err != nil {
			t.Fatal(err)
		}
		client, err := holdfast.New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if node := client.Nodes()[0]; node.State != holdfast.NodePolling || node.Err == nil {
			t.Errorf("node = %+v, want polling with its reason", node)
		}
		(*last.Load()).Close()
		time.Sleep(time.Minute)
		if dialled.Load() < 2 || client.Nodes()[0].State != holdfast.NodePolling {
			t.Errorf("%d connections, state %v", dialled.Load(), client.Nodes()[0].State)
		}
		if n := said.countWord("who poll"); n != 1 {
			t.Errorf("logged %d times, want once:\n%s", n, &said.text)
		}
	})
}

// Several servers without run ids could forget a lock unnoticed.
func TestSeveralMiniredisAreRejectedAsSet(t *testing.T) {
	t.Parallel()
	var nodes []redis.Node
	for range 3 {
		nodes = append(nodes, redis.Node{Addr: miniredis.RunT(t).Addr()})
	}
	_, err := redis.New(t.Context(), nodes, nil)
	if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "run_id") || !strings.Contains(err.Error(), "use this server alone") {
		t.Errorf("Open() = %v, want ErrConfig with run_id and the mend", err)
	}
}

// FastForward affects a lock like a jump of the server's clock: the lock is gone, and the next renewal reports
// the loss, whether another client was granted the lock or not.
func TestFastForwardMovesServerClock(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprint("taken=", taken), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := startServer(t)
				holder, rival := newClient(t, m), newClient(t, m)
				lease, err := holder.Acquire(t.Context(), "job", nil)
				if err != nil {
					t.Fatal(err)
				}
				m.FastForward(time.Hour)
				if taken {
					if _, err := rival.Acquire(t.Context(), "job", nil); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute)
				if err := context.Cause(lease.Context()); !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("after an hour's jump: %v, want ErrLost", err)
				}
			})
		})
	}
}

func newClient(t *testing.T, m *miniredis.Miniredis) *holdfast.Client {
	t.Helper()
	drv, err := redis.New(t.Context(), []redis.Node{{Addr: "miniredis:6379"}}, &redis.Options{Dial: dialServer(m)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
