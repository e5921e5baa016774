package redis_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
)

// An operator's commands find the shard of a lock, and the doctor checks all shards.
func TestOperatorsSeeWholeCluster(t *testing.T) {
	r := startCluster(t, nil)
	d := r.openURL("")
	c, other := r.clientOf(d, nil), r.newClient("")
	names := []string{"a", "b", "c", "d", "e", "f"}
	var leases []*holdfast.Lease
	for _, name := range names {
		leases = append(leases, r.acquire(c, name, &holdfast.AcquireOptions{TTL: longTTL}))
	}
	var listed []string
	shards := make(map[string]bool)
	for st, err := range other.List(t.Context(), "") {
		r.noError(err)
		listed = append(listed, st.Key)
		shards[st.Nodes[0].Node] = true
	}
	if slices.Sort(listed); !slices.Equal(listed, names) {
		t.Errorf("List() has %q, want %q", listed, names)
	}
	if len(shards) != 3 {
		t.Errorf("the locks are on %d shards: choose other names", len(shards))
	}
	if err := other.ForceRelease(t.Context(), "a", leases[0].Token(), "maintenance"); err != nil {
		t.Errorf("ForceRelease() = %v", err)
	}
	select {
	case <-leases[0].Context().Done():
	case <-r.boundedContext().Done():
		t.Error("the holder was not notified")
	}
	checkMentions(t, context.Cause(leases[0].Context()), "maintenance")
	stray := r.atMaster("stray", "SET", "lock:stray", "x")
	var leaks []string
	for leak, err := range d.Leaks(t.Context(), nil) {
		r.noError(err)
		leaks = append(leaks, leak.Key+" on "+leak.Node)
	}
	if want := []string{"lock:stray on " + stray}; !slices.Equal(leaks, want) {
		t.Errorf("Leaks() has %q, want %q", leaks, want)
	}
	var nodes []string
	forgetful := 0
	for _, f := range d.Diagnose(t.Context(), time.Second) {
		if f.Verdict == driver.VerdictFault {
			t.Errorf("the doctor reports %+v", f)
		}
		if f.Check == "persistence" && strings.Contains(f.Fix, "appendonly yes") {
			forgetful++
		}
		if !slices.Contains(nodes, f.Node) {
			nodes = append(nodes, f.Node)
		}
	}
	if len(nodes) != 4 { // and the cluster as a whole
		t.Errorf("the doctor checked %q", nodes)
	}
	if forgetful != 3 {
		t.Errorf("%d masters that have no append-only file are named, of 3", forgetful)
	}
	r.release(leases[1:]...)
}

// atMaster sends a command to the server that has the slot of a lock, and returns the server's address.
func (r *clusterRig) atMaster(name string, args ...string) string {
	r.Helper()
	s, _ := r.master(name)
	if _, err := s.Do(args...); err != nil {
		r.Fatal(err)
	}
	return s.Addr()
}

// The permissions that the doctor lists suffice, also while a slot is migrating.
func TestDocumentedPermissionsSufficeOnCluster(t *testing.T) {
	const rights = "+auth +hello +client|setname +ping +info +time +script|load +evalsha +get +set +del +exists +incrby +pexpire +pttl +zadd " +
		"+zrangebyscore +zcard +zcount +zscore +zrem +publish +pubsub|numsub +subscribe +unsubscribe +cluster|myid +cluster|slots +cluster|info +asking"
	const user = " on >secret resetkeys ~lock:* ~holdfast:* resetchannels &holdfast:wake:* -@all "
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{
		ACL: []string{"locker" + user + rights, "poor" + user + strings.ReplaceAll(rights, "+cluster|slots", "")},
	}})
	open := func(user string) (*redis.Driver, error) {
		return redis.Open(t.Context(), fmt.Sprintf("redis+cluster://%s:secret@%s?timeout="+busyTimeout().String(), user, r.servers[0].Addr()), nil)
	}
	d, err := open("locker")
	r.noError(err)
	c := r.clientOf(d, nil)
	l := r.acquire(c, "k", nil)
	r.move("k", nil)
	if err := r.retryLate(func() error { return l.Extend(t.Context(), longTTL) }); err != nil {
		t.Errorf("Extend() = %v", err)
	}
	r.release(l)
	_, err = open("poor")
	if !errors.Is(err, driver.ErrAuth) {
		t.Errorf("Open() = %v without a right, want driver.ErrAuth", err)
	}
	found, err := runDoctor(t.Context(), fmt.Sprintf("redis+cluster://poor:secret@%s?timeout="+busyTimeout().String(), r.servers[0].Addr()), 0, nil)
	if err != nil || len(found) == 0 || !strings.Contains(found[0].Fix, "+cluster|slots") {
		t.Errorf("Diagnose() = %+v, %v", found, err)
	}
}
