package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	crowdQueue     = "holdfast:queue:{lock:bench}"
	crowdHandOvers = 100
)

// crowd is what many clients cost that wait for one lock, and how they are served.
type crowd struct {
	Clients     int     `json:"clients"`
	Load        float64 `json:"node_processor_share"`       // while nobody releases
	Asked       float64 `json:"requests_per_second"`        // then, from all together
	FewHandOver float64 `json:"hand_over_p50_ms_8_clients"` // from a release to the next holder
	HandOver    float64 `json:"hand_over_p50_ms"`
	OutOfOrder  int     `json:"served_out_of_order"`
}

func (c crowd) String() string {
	return fmt.Sprintf("%d waiting clients while nobody releases: %.2f %% of the node's processor, %.0f requests/s.\n"+
		"Then a hand-over takes %.3f ms (p50; %.3f with %d), "+
		"%d of %d out of order.\n", c.Clients, 100*c.Load, c.Asked, c.HandOver, c.FewHandOver, fewWaiters, c.OutOfOrder, crowdHandOvers)
}

// measureCrowd measures both numbers of clients on one node.
func measureCrowd(ctx context.Context, s settings, node servers) (crowd, error) {
	many, gaps, err := waitInCrowd(ctx, s, node, s.crowd)
	if err != nil {
		return crowd{}, err
	}
	many.HandOver = median(gaps)
	var few []float64
	s.settle, s.idle = s.settle/50, s.idle/50
	for len(few) < len(gaps) { // eight hand-overs say little
		_, more, err := waitInCrowd(ctx, s, node, fewWaiters)
		if err != nil {
			return crowd{}, err
		}
		few = append(few, more...)
	}
	many.FewHandOver = median(few)
	return many, nil
}

// turn is one waiter's: when it began to wait, and when it had the lock and let go of it.
type turn struct{ asked, got, left time.Time }

// waitInCrowd has n clients wait, each with a connection of its own, looks at the node for
// a while, and then lets the lock go from one to the next. gaps are the ms of these hand-overs.
func waitInCrowd(ctx context.Context, s settings, node servers, n int) (out crowd, gaps []float64, err error) {
	out.Clients = n
	if err := node.flush(); err != nil {
		return out, nil, err
	}
	clients, err := openAll(ctx, allPeers[0], scenario{clients: n + 1, workers: 1}, node.addrs())
	defer closeAll(clients)
	if err != nil {
		return out, nil, err
	}
	first, err := clients[n].lock(ctx, "bench")
	if err != nil {
		return out, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	var mu sync.Mutex // guards turns
	turns := make([]turn, 0, n)
	for _, c := range clients[:n] {
		time.Sleep(time.Millisecond) // so that they ask in the order in which they begin
		waiting.Go(func() {
			asked := time.Now()
			held, err := c.lock(ctx, "bench")
			if err != nil {
				return
			}
			got := time.Now()
			time.Sleep(time.Millisecond) // its work
			mu.Lock()
			turns = append(turns, turn{asked, got, time.Now()})
			enough := len(turns) == min(crowdHandOvers, n)
			mu.Unlock()
			if enough {
				cancel()
			}
			held.unlock(context.WithoutCancel(ctx))
		})
	}
	if err := awaitQueue(ctx, node, n); err != nil {
		return out, nil, err
	}
	time.Sleep(s.settle) // for what they asked as they came, and for their times to spread
	if out.Load, out.Asked, err = node.idle(s.idle); err != nil {
		return out, nil, err
	}
	if err := first.unlock(ctx); err != nil {
		return out, nil, err
	}
	waiting.Wait()
	slices.SortFunc(turns, func(a, b turn) int { return a.got.Compare(b.got) })
	for i := 1; i < len(turns); i++ {
		gaps = append(gaps, ms(turns[i].got.Sub(turns[i-1].left)))
		if turns[i].asked.Before(turns[i-1].asked) {
			out.OutOfOrder++
		}
	}
	if len(gaps) == 0 {
		return out, nil, errors.New("the lock was not handed on")
	}
	return out, gaps, nil
}

// awaitQueue blocks until the node keeps a place for n clients.
func awaitQueue(ctx context.Context, node servers, n int) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		reply, err := node[0].Do("ZCARD", crowdQueue)
		if err != nil {
			return err
		}
		if waiting, _ := reply.(int64); int(waiting) == n {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return errors.New("of " + strconv.Itoa(n) + " clients only " + fmt.Sprint(reply) + " wait")
		}
	}
}

// idle is the share of a processor that the node uses in so long, and how many scripts it
// is asked for in a second.
func (all servers) idle(d time.Duration) (load, asked float64, err error) {
	cpu, err1 := all.cpuTime()
	calls, err2 := all.calls()
	begin := time.Now()
	time.Sleep(d)
	cpuAfter, err3 := all.cpuTime()
	callsAfter, err4 := all.calls()
	took := time.Since(begin)
	return float64(cpuAfter-cpu) / float64(took), float64(callsAfter["evalsha"]-calls["evalsha"]) / took.Seconds(), errors.Join(err1, err2, err3, err4)
}
