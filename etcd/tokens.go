package etcd

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Tokens are the revision that created a key, times the tokens between two revisions, and a base. The base is in a key beside
// the locks, and makes them begin at the time, in µs since 1970, as tokens of Redis and PostgreSQL do: so a row that was fenced
// with their tokens goes on with these. It only rises. A client raises it when it begins and finds the tokens behind its clock.
//
// A key of a lock is created on condition that the base is still the one that it says, so that whoever comes later has a later
// token, and nobody has to ask for the base.

// ahead is the time by which a client raises the tokens before its clock, so that not each client that
// starts does so.
const ahead = 10 * time.Second

// base is a client's knowledge of the base of tokens.
type base struct {
	mu       sync.Mutex // guards what follows
	begun    bool       // it was not behind the clock
	value    int64
	revision int64 // that wrote it; 0: none is known
}

// known is the base and what compares that it is still so, which fails where none is known.
func (b *base) known(key string) (int64, clientv3.Cmp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.revision == 0 {
		return 0, clientv3.Compare(clientv3.ModRevision(key), "<", 0)
	}
	return b.value, clientv3.Compare(clientv3.ModRevision(key), "=", b.revision)
}

// readKey notes what the key says at a revision of the cluster, and returns what to write there, if anything, where that was
// written last at revision before.
func (b *base) readKey(kvs []*mvccpb.KeyValue, revision int64, now time.Time) (raised, before int64, raise bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision = 0
	var stored int64
	for _, kv := range kvs {
		b.revision = kv.ModRevision
		stored, _ = strconv.ParseInt(string(kv.Value), 10, 64)
	}
	clock := now.UnixMicro() - tokenOf(0, revision, 0)
	lost := b.revision == 0 || stored < b.value // people delete keys
	b.value = max(b.value, stored)
	if !lost && (b.begun || stored >= clock) {
		b.begun = true
		return 0, 0, false
	}
	before, b.revision = b.revision, 0
	return max(b.value, clock+ahead.Microseconds()), before, true
}

// noteWritten notes what this client has written.
func (b *base) noteWritten(value, revision int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun, b.value, b.revision = true, value, revision
}

func (d *Driver) baseKey() string { return d.messagePrefix() + "tokens" }

// updateBase reads the base of tokens that another client has written since, or writes one.
func (d *Driver) updateBase(ctx context.Context, ttl time.Duration, kvs []*mvccpb.KeyValue, revision int64) error {
	value, before, raise := d.base.readKey(kvs, revision, time.Now())
	if !raise {
		return nil
	}
	return d.callAny(ctx, pace.RequestTime(ttl, pace.Members), func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(d.baseKey()), "=", before)).
			Then(clientv3.OpPut(d.baseKey(), strconv.FormatInt(value, 10))).Commit()
		if err == nil && resp.Succeeded {
			d.base.noteWritten(value, resp.Header.Revision)
		}
		return err
	})
}
