package redis

import (
	"bytes"
	"context"
	"log/slog"
	"runtime/pprof"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// After one node has answered a lookup, no goroutine waits for the others.
func TestAnsweredLookUpEndsItsGoroutines(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 2)
	d, err := New(t.Context(), []Node{{Addr: servers[0].Addr()}, {Addr: servers[1].Addr()}}, &Options{NoQuarantine: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := servers[0].Do("SET", wire.Client+"someone", `{"program":"p"}`); err != nil {
		t.Fatal(err)
	}
	silent := d.nodes[1].link.Load()
	if err := servers[1].Pause(); err != nil {
		t.Fatal(err)
	}
	defer servers[1].Resume()
	const label = "a look-up"
	var who driver.Holder
	pprof.Do(t.Context(), pprof.Labels("for", label), func(ctx context.Context) {
		who, _ = d.lookUpClient(context.WithoutCancel(ctx), "someone")
	})
	if who.Program != "p" {
		t.Fatalf("lookUp() = %+v", who)
	}
	for hasLabel(label) { // the last goroutine may be ending
		if silent.Ended() {
			t.Fatal("a goroutine waited until the silent connection was closed")
		}
	}
}

// hasLabel reports whether a goroutine has a label with that value.
func hasLabel(value string) bool {
	var all bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 1)
	return bytes.Contains(all.Bytes(), []byte(value))
}

// slowLog is a log handler that blocks until the test allows it to continue.
type slowLog struct {
	slog.Handler
	asked chan struct{} // receives a value for each line
	may   chan struct{} // closed when it may continue
}

func (s slowLog) Handle(context.Context, slog.Record) error {
	s.asked <- struct{}{}
	<-s.may
	return nil
}

// Close waits for a slow Logger, but not for a Logger that hangs.
func TestCloseWaitsForLogger(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		server := redistest.Start(t, nil)
		log := slowLog{slog.NewTextHandler(t.Output(), nil), make(chan struct{}, 10), make(chan struct{})}
		d, err := New(t.Context(), []Node{{Addr: server.Addr()}}, &Options{AllowEviction: true, Logger: slog.New(log)})
		if err != nil {
			t.Fatal(err)
		}
		server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
		server.Do("CLIENT", "KILL", "TYPE", "normal")
		server.Do("CLIENT", "KILL", "TYPE", "pubsub")
		<-log.asked
		var taken atomic.Bool
		if !hangs {
			time.AfterFunc(50*time.Millisecond, func() { taken.Store(true); close(log.may) })
		}
		d.Close()
		if !hangs && !taken.Load() {
			t.Error("Close returned while the Logger was running")
		}
		if hangs {
			close(log.may)
		}
	}
}
