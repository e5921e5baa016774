package etcd_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// The restored cluster has the waiter's key, and an earlier revision than the waiter's watch. So that watch
// reports no event up to its revision.
func TestWaiterSurvivesSnapshotRestore(t *testing.T) {
	r := startAlone(t, 1)
	was := r.cluster.Members[0]
	way, err := faultproxy.NewOpaque(was.Addr)
	r.NoError(err)
	t.Cleanup(func() { way.Close() })
	client := func() (driver.Driver, *holdfast.Client) {
		l := r.proxyTo(way.Addr())
		d, err := etcd.New(r.Context(), []string{l.Addr}, withoutCheck(r.opts))
		fixture.CloseAtEnd(r.Rig, d, err)
		r.Route(d, l)
		return d, r.Client(d)
	}
	_, holder := client()
	waiting, waiter := client()
	l := r.Acquire(holder, "k", longTTL)
	other := r.opts.Prefix + "k,other.1" // another waiter's key, deleted to make the waiter read again
	r.NoError(errorOf(r.direct.Put(r.WaitContext(), other, "")))
	next := make(chan *holdfast.Lease, 1)
	ctx, cancel := context.WithTimeout(r.Context(), 4*fixture.MaxWait())
	defer cancel()
	go func() {
		l, err := waiter.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: longTTL / 3})
		if err != nil {
			t.Errorf("Acquire() = %v", err)
		}
		next <- l
	}()
	r.Eventually("the waiter watches", func() bool { return r.Counts(waiting)["Watch"] > 0 })

	was.Kill()
	data := filepath.Join(t.TempDir(), "data")
	r.NoError(os.CopyFS(data, os.DirFS(strings.TrimSuffix(was.Output, ".log"))))
	r.NoError(was.Restart(r.Context()))
	for range 100 {
		r.NoError(errorOf(r.direct.Put(r.WaitContext(), "another", "")))
	}
	looked := r.Counts(waiting)
	r.NoError(errorOf(r.direct.Delete(r.WaitContext(), other)))
	// The waiter asks for the holder's remaining time while it watches. The new watch may share the stream of
	// the last one, which counts once.
	r.Eventually("the waiter watches again", func() bool {
		n := r.Counts(waiting)
		return n["Txn"] > looked["Txn"] && n["LeaseTimeToLive"] > looked["LeaseTimeToLive"]
	})

	again, err := etcdproc.Start(r.Context(), 1, "--data-dir="+data)
	restored := newRig(t, fixture.StopAtEnd(t, again, err))
	r.NoError(errorOf(restored.direct.Delete(r.WaitContext(), other)))
	way.Redirect(again.Members[0].Addr)
	way.Cut()
	r.Release(l)
	if l := <-next; l != nil {
		r.Release(l)
	}
}
