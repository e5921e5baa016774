package zookeeper_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// runInBubble runs a parallel test over a fake ensemble of three members, in virtual time.
func runInBubble(t *testing.T, run func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { run(t, newFakeRig(t, newFake(t, 3))) })
}

func newFakeRig(t testing.TB, f *fake) *rig {
	return &rig{
		Rig: fixture.New(t), fake: f, addrs: f.addrs(),
		opts: *zookeeper.WithDial(zookeeper.Options{Path: fmt.Sprint("/test/", paths.Add(1))}, f.dial),
	}
}

// memberLinks returns a link to each member of a fake.
func (r *rig) memberLinks() (links []*fixture.Link) {
	for _, addr := range r.addrs {
		l := fixture.NewLink()
		l.Addr = addr
		links = append(links, l)
	}
	return links
}

// dialThrough returns a function that dials the members of a fake through links, one for each member.
func (r *rig) dialThrough(links []*fixture.Link, speak func() fixture.Protocol) func(ctx context.Context, addr string) (net.Conn, error) {
	var carried sync.WaitGroup
	r.Cleanup(func() {
		for _, l := range links {
			l.Close()
		}
		carried.Wait()
	})
	return func(_ context.Context, addr string) (net.Conn, error) {
		for _, l := range links {
			if l.Addr != addr {
				continue
			}
			near, far := newWires()
			near.pause = r.fake.pauseClient
			carried.Go(func() {
				l.Carry(far, func() (net.Conn, error) { return r.fake.dial(context.Background(), addr) }, speak())
			})
			return near, nil
		}
		return nil, fmt.Errorf("no member %s", addr)
	}
}

// balance returns a way to dial which leads each connection to the member that choose returns for its first four
// bytes.
func (r *rig) balance(choose func(word string) *server) func(ctx context.Context, addr string) (net.Conn, error) {
	var carried sync.WaitGroup
	r.Cleanup(carried.Wait)
	return func(context.Context, string) (net.Conn, error) {
		near, far := newWires()
		carried.Go(func() {
			defer far.Close()
			word := make([]byte, 4)
			if _, err := io.ReadFull(far, word); err != nil {
				return
			}
			conn, err := r.fake.dial(context.Background(), choose(string(word)).addr)
			if err != nil {
				return
			}
			carried.Go(func() {
				conn.Write(word)
				io.Copy(conn, far)
				conn.Close()
			})
			io.Copy(far, conn)
		})
		return near, nil
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d members", members), func(t *testing.T) {
			locktest.Run(t, locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service { return newFakeRig(t, newFake(t, members)).lockService() }})
		})
	}
}
