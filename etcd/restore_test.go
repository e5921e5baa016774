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

// TestAWaiterOutlastsTheRestoreOfASnapshot: the cluster that it goes on with knows its key, and is at a revision before the one that
// it watches from. Of what happens there up to that revision no watch tells.
func TestAWaiterOutlastsTheRestoreOfASnapshot(t *testing.T) {
	r := startAlone(t, 1)
	was := r.cluster.Members[0]
	way, err := faultproxy.NewOpaque(was.Addr)
	r.Must(err)
	t.Cleanup(func() { way.Close() })
	client := func() (driver.Driver, *holdfast.Client) {
		l := r.proxyTo(way.Addr())
		d, err := etcd.New(r.Context(), []string{l.Addr}, withoutCheck(r.opts))
		fixture.Closed(r.Rig, d, err)
		r.Route(d, l)
		return d, r.Client(d)
	}
	_, holder := client()
	waiting, waiter := client()
	l := r.Acquire(holder, "k", long)
	other := r.opts.Prefix + "k,other.1" // who leaves, so that the waiter looks anew
	r.Must(errorOf(r.direct.Put(r.Within(), other, "")))
	next := make(chan *holdfast.Lease, 1)
	ctx, cancel := context.WithTimeout(r.Context(), 4*fixture.Patience())
	defer cancel()
	go func() {
		l, err := waiter.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: long / 3})
		if err != nil {
			t.Errorf("Acquire() = %v", err)
		}
		next <- l
	}()
	r.Eventually("the waiter watches", func() bool { return r.Counts(waiting)["Watch"] > 0 })

	was.Kill()
	data := filepath.Join(t.TempDir(), "data")
	r.Must(os.CopyFS(data, os.DirFS(strings.TrimSuffix(was.Output, ".log"))))
	r.Must(was.Restart(r.Context()))
	for range 100 {
		r.Must(errorOf(r.direct.Put(r.Within(), "another", "")))
	}
	looked := r.Counts(waiting)
	r.Must(errorOf(r.direct.Delete(r.Within(), other)))
	// It asks how long the holder has while it watches. That may go over the stream of the last watch, which counts once.
	r.Eventually("the waiter watches again", func() bool {
		n := r.Counts(waiting)
		return n["Txn"] > looked["Txn"] && n["LeaseTimeToLive"] > looked["LeaseTimeToLive"]
	})

	again, err := etcdproc.Start(r.Context(), 1, "--data-dir="+data)
	restored := newRig(t, fixture.Stopped(t, again, err))
	r.Must(errorOf(restored.direct.Delete(r.Within(), other)))
	way.Redirect(again.Members[0].Addr)
	way.Cut()
	r.Release(l)
	if l := <-next; l != nil {
		r.Release(l)
	}
}
