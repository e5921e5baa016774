package redis_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// BenchmarkClusterBesidePlainNodes acquires and releases locks on a cluster of three masters and on three
// plain servers over which the names are spread in the same way, in turns of a second. It reports both rates,
// and the median of their ratio.
func BenchmarkClusterBesidePlainNodes(b *testing.B) {
	for _, workers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			c := redistest.Cluster(b, &redisproc.ClusterOptions{Masters: 3})
			on := newDriver(b, []redis.Node{{Addr: c.Servers[0].Addr()}}, &redis.Options{Cluster: true, Timeout: busyTimeout()})
			var plain []*redis.Driver
			for _, s := range redistest.StartN(b, 3) {
				d := newDriver(b, []redis.Node{{Addr: s.Addr()}}, &redis.Options{Timeout: busyTimeout()})
				plain = append(plain, d)
			}
			var rates [2]float64
			var ratios []float64
			for b.Loop() {
				var round [2]float64
				for _, i := range []int{0, 1} {
					round[i] = lockRate(b, workers, func(name string) *redis.Driver {
						if i == 0 {
							return on
						}
						return plain[wire.Slot("lock:"+name)*3/wire.Slots]
					})
					rates[i] += round[i]
				}
				ratios = append(ratios, round[0]/round[1])
			}
			slices.Sort(ratios)
			b.ReportMetric(rates[0]/float64(len(ratios)), "locks/s-cluster")
			b.ReportMetric(rates[1]/float64(len(ratios)), "locks/s-plain")
			b.ReportMetric(ratios[len(ratios)/2], "cluster/plain")
		})
	}
}

// lockRate returns the number of locks that the workers acquire and release in a second.
func lockRate(b *testing.B, workers int, on func(name string) *redis.Driver) float64 {
	var count atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(time.Second)
	for w := range workers {
		all.Go(func() {
			name := fmt.Sprintf("worker%d", w)
			d := on(name)
			for time.Now().Before(end) {
				g, err := d.Acquire(b.Context(), driver.Request{Key: name, TTL: time.Minute, NoWait: true})
				if err == nil {
					err = d.Release(b.Context(), g, 0)
				}
				if err != nil {
					b.Error(err)
					return
				}
				count.Add(1)
			}
		})
	}
	all.Wait()
	return float64(count.Load())
}
