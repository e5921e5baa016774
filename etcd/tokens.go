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

// A token is the revision that created a key, times the number of tokens between two revisions, plus a base.
// The base is in a key beside the locks. It makes tokens begin at the time, in µs since 1970, like tokens of
// Redis and PostgreSQL, so that a row that was fenced with their tokens accepts these. The base only rises. A
// client raises it at its start if it finds the tokens behind its clock.
//
// A client creates the key of a lock on condition that the base is unchanged. So a later claim has a later
// token, without a request for the base.

// tokenLead is the time by which a client raises the tokens beyond its clock, so that not each client must raise
// them at its start.
const tokenLead = 10 * time.Second

// tokenBase is the token base as this client has read it.
type tokenBase struct {
	mu       sync.Mutex // guards the fields below
	begun    bool       // it was seen not to be behind the clock
	value    int64
	revision int64 // revision that wrote it; 0: unknown
}

// known returns the base and the condition that it is unchanged, which fails if the base is unknown.
func (b *tokenBase) known(key string) (int64, clientv3.Cmp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.revision == 0 {
		return 0, clientv3.Compare(clientv3.ModRevision(key), "<", 0)
	}
	return b.value, clientv3.Compare(clientv3.ModRevision(key), "=", b.revision)
}

// readKey stores the key's value at a revision of the cluster. If the base must be written, raise is true,
// raised is the new value, and before is the revision of the last write.
func (b *tokenBase) readKey(kvs []*mvccpb.KeyValue, revision int64, now time.Time) (raised, before int64, raise bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision = 0
	var stored int64
	for _, kv := range kvs {
		b.revision = kv.ModRevision
		stored, _ = strconv.ParseInt(string(kv.Value), 10, 64)
	}
	clock := now.UnixMicro() - tokenOf(0, revision, 0)
	lost := b.revision == 0 || stored < b.value // the key may have been deleted by hand
	b.value = max(b.value, stored)
	if !lost && (b.begun || stored >= clock) {
		b.begun = true
		return 0, 0, false
	}
	before, b.revision = b.revision, 0
	return max(b.value, clock+tokenLead.Microseconds()), before, true
}

// noteWritten stores the base that this client has written.
func (b *tokenBase) noteWritten(value, revision int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun, b.value, b.revision = true, value, revision
}

func (d *Driver) baseKey() string { return d.messagePrefix() + "tokens" }

// updateBase stores the token base that another client has written, or writes one.
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
