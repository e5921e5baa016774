package redis_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// openBench returns a driver over a new server.
func openBench(b *testing.B) (*redis.Driver, *redisproc.Server) {
	b.Helper()
	s := redistest.Start(b, nil)
	d := newDriver(b, []redis.Node{{Addr: s.Addr()}}, &redis.Options{Timeout: busyTimeout()})
	return d, s
}

func doCommand(b *testing.B, s *redisproc.Server, args ...string) any {
	b.Helper()
	v, err := s.Do(args...)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// reportTimes reports the median and the longest of the times, in µs.
func reportTimes(b *testing.B, what string, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-"+what)
	b.ReportMetric(float64(times[len(times)-1].Microseconds()), "µs-longest-"+what)
}

// BenchmarkExpiredQueueEntries acquires and releases a lock with many expired places in its queue, and sends PINGs
// meanwhile. It reports the time of a grant, of a PING, and of a script by the server's own clock.
func BenchmarkExpiredQueueEntries(b *testing.B) {
	for _, dead := range []int{0, 100_000} {
		b.Run(strconv.Itoa(dead), func(b *testing.B) {
			d, s := openBench(b)
			queue := wire.QueueKey("lock:k")
			plant := func() {
				for first := 0; first < dead; first += 1000 {
					cmd := []string{"ZADD", queue}
					for i := range 1000 {
						id := fmt.Sprintf("dead%08d.%d", first+i, time.Now().UnixMicro())
						cmd = append(cmd, strconv.Itoa(first+i+1), id, "-1", "!"+id)
					}
					doCommand(b, s, cmd...)
				}
				if dead > 0 {
					doCommand(b, s, "PEXPIRE", queue, "600000")
				}
			}
			doCommand(b, s, "CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "100000")
			var grants, pings, scripts []time.Duration
			for b.Loop() {
				plant()
				doCommand(b, s, "SLOWLOG", "RESET")
				var all sync.WaitGroup
				stop := make(chan struct{})
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						begin := time.Now()
						if _, err := s.Do("PING"); err != nil {
							b.Error(err)
							return
						}
						pings = append(pings, time.Since(begin))
					}
				})
				for range 200 {
					begin := time.Now()
					g, err := d.Acquire(b.Context(), driver.Request{Key: "k", TTL: time.Minute, NoWait: true})
					if err == nil {
						grants = append(grants, time.Since(begin))
						err = d.Release(b.Context(), g, 0)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				close(stop)
				all.Wait()
				for _, entry := range doCommand(b, s, "SLOWLOG", "GET", "-1").([]any) {
					if fields := entry.([]any); fields[3].([]any)[0] == "EVALSHA" {
						scripts = append(scripts, time.Duration(fields[2].(int64))*time.Microsecond)
					}
				}
			}
			reportTimes(b, "grant", grants)
			reportTimes(b, "ping", pings)
			reportTimes(b, "script", scripts)
		})
	}
}

// BenchmarkRepeatedAdopt adopts one lease repeatedly; each adoption leaves a note in the queue. It reports the
// time of an adoption and the memory of the notes, for the first thousand adoptions and for those after 20,000.
func BenchmarkRepeatedAdopt(b *testing.B) {
	for b.Loop() {
		d, s := openBench(b)
		g, err := d.Acquire(b.Context(), driver.Request{Key: "k", TTL: time.Minute, NoWait: true, Adoptable: true})
		if err != nil {
			b.Fatal(err)
		}
		var first, last []time.Duration
		for i := range 21_000 {
			d.Detach(g)
			begin := time.Now()
			if g, err = d.Adopt(b.Context(), g); err != nil {
				b.Fatal(err)
			}
			switch took := time.Since(begin); {
			case i < 1000:
				first = append(first, took)
			case i >= 20_000:
				last = append(last, took)
			}
		}
		reportTimes(b, "first", first)
		reportTimes(b, "after-20000", last)
		queue := wire.QueueKey("lock:k")
		b.ReportMetric(float64(doCommand(b, s, "ZCARD", queue).(int64)), "notes")
		if bytes, ok := doCommand(b, s, "MEMORY", "USAGE", queue, "SAMPLES", "0").(int64); ok {
			b.ReportMetric(float64(bytes), "B-queue")
		}
	}
}

// BenchmarkSemaphoreWaiters has 4,000 callers of one client wait for 64 slots that another client holds, each
// with its own note. It reports the memory of one waiter in the client.
func BenchmarkSemaphoreWaiters(b *testing.B) {
	const slots, waiters = 64, 4000
	for b.Loop() {
		holding, s := openBench(b)
		d := newDriver(b, []redis.Node{{Addr: s.Addr()}}, &redis.Options{Timeout: busyTimeout()})
		holder, err := holdfast.New(holding, nil)
		if err != nil {
			b.Fatal(err)
		}
		c, err := holdfast.New(d, nil)
		if err != nil {
			b.Fatal(err)
		}
		for range slots {
			if _, err := holder.Semaphore("k", slots).Acquire(b.Context(), &holdfast.AcquireOptions{TTL: time.Minute}); err != nil {
				b.Fatal(err)
			}
		}
		memory := func() float64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return float64(m.HeapAlloc + m.StackInuse)
		}
		before := memory()
		ctx, stop := context.WithCancel(b.Context())
		var all sync.WaitGroup
		for i := range waiters {
			all.Go(func() {
				if _, err := c.Semaphore("k", slots).Acquire(ctx, &holdfast.AcquireOptions{Note: strconv.Itoa(i)}); err == nil {
					b.Error("a waiter was granted a held slot")
				}
			})
		}
		time.Sleep(5 * time.Second) // all wait by then
		b.ReportMetric((memory()-before)/waiters/1024, "KiB/waiter")
		stop()
		all.Wait()
		c.Close()
		holder.Close()
	}
}
