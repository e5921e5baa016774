package etcd

import (
	"context"
	"errors"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/pace"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
)

// An address leads to two clusters. Answers of both are under way at once.
func TestEachAnswerIsJudgedByItsCluster(t *testing.T) {
	t.Parallel()
	u := &clusterIDs{ids: []uint64{7, 7, 7}}
	begin := make(chan struct{})
	var all sync.WaitGroup
	for _, id := range []uint64{7, 8} {
		all.Go(func() {
			<-begin
			for range 20_000 {
				if err := u.checkAnswer(0, id); (err != nil) != (id == 8) {
					t.Errorf("an answer of cluster %d: %v", id, err)
					return
				}
			}
		})
	}
	close(begin)
	all.Wait()
}

// A member of another cluster does not know the lease. Its answer must not count, although it names no cluster.
func TestLeaseSurvivesMemberOfAnotherCluster(t *testing.T) {
	gates.NeedsServer(t)
	t.Parallel()
	other, err := etcdproc.Start(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Stop() })
	n, err := newNode(t.Context(), 2, other.Addrs()[0], "", &Options{}, &clusterIDs{ids: []uint64{7, 7, 0}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	err = n.tryRequest(t.Context(), 3*pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error { return errorOf(c.Revoke(ctx, 1)) })
	if !errors.Is(err, errForeign) {
		t.Errorf("Revoke() = %v, want that the member is of another cluster", err)
	}
}
