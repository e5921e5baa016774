package etcd

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// The keys of a lock are a folder, <prefix><name>/, with a key for each attempt that has
// the lock or waits for it: <client>.<number>. An owner is that place in the folder and the
// lease of the key, <client>.<number>.<lease>, so that a lease that is adopted keeps its
// place and has a new owner.

const (
	// block is how many tokens a grant has.
	block = 32
	// adoptions is how many grants have room between two revisions: the first one, and
	// those of clients that adopt it.
	adoptions = 32
)

// value is what a key says.
type value struct {
	driver.Holder
	Since time.Time `json:"since"`
}

// entry is a key.
type entry struct {
	key      string // empty: there is none
	revision int64  // that created it
	lease    clientv3.LeaseID
	moves    int64 // how often it was put under another lease
	owner    string
	token    int64
	value    value
}

func read(kv *mvccpb.KeyValue) entry {
	e := entry{key: string(kv.Key), revision: kv.CreateRevision, lease: clientv3.LeaseID(kv.Lease), moves: kv.Version - 1}
	e.owner = ownerOf(e.key[strings.LastIndexByte(e.key, '/')+1:], e.lease)
	e.token = tokenOf(e.revision, e.moves)
	json.Unmarshal(kv.Value, &e.value) // the key of another program names no holder
	return e
}

// tokenOf is the first token of a grant.
func tokenOf(revision, moves int64) int64 {
	return (revision*adoptions + min(moves, adoptions-1)) * block
}

func ownerOf(place string, lease clientv3.LeaseID) string {
	return place + "." + strconv.FormatInt(int64(lease), 16)
}

// parse is the reverse of ownerOf. An owner of another form has the lease 0, which none is.
func parse(owner string) (place string, lease clientv3.LeaseID) {
	i := max(strings.LastIndexByte(owner, '.'), 0)
	id, err := strconv.ParseInt(strings.TrimPrefix(owner[i:], "."), 16, 64)
	if err != nil {
		return owner, clientv3.NoLease
	}
	return owner[:i], clientv3.LeaseID(id)
}

// escape leaves no / in a name, and works byte by byte, so that it keeps prefixes.
func escape(name string) string { return url.PathEscape(name) }

// messages begins the names of the keys by which Force tells a holder, of which the owner
// follows. No name of a lock is empty.
func (d *Driver) messages() string { return d.prefix + "/" }

func (d *Driver) folder(name string) string { return d.prefix + escape(name) + "/" }

// nameOf is the name of the lock that key is for.
func (d *Driver) nameOf(key string) (string, bool) {
	name, place, ok := strings.Cut(strings.TrimPrefix(key, d.prefix), "/")
	name, err := url.PathUnescape(name)
	return name, ok && err == nil && name != "" && !strings.Contains(place, "/")
}

// newPlace is a place that was never used.
func (d *Driver) newPlace() string { return d.client + "." + strconv.FormatInt(d.seq.Add(1), 36) }

// lineUp is who has a lock and how many want it.
type lineUp struct {
	first entry
	keys  int
}

func (l lineUp) waiters() int { return max(l.keys-1, 0) }

func (l *lineUp) add(e entry) {
	if l.keys++; l.first.key == "" || e.revision < l.first.revision {
		l.first = e
	}
}

// getFirst reads the line-up of a lock.
func (d *Driver) getFirst(name string) clientv3.Op {
	return clientv3.OpGet(d.folder(name), clientv3.WithFirstCreate()...)
}

func lineOf(resp *clientv3.GetResponse) lineUp {
	l := lineUp{keys: int(resp.Count)}
	if len(resp.Kvs) > 0 {
		l.first = read(resp.Kvs[0])
	}
	return l
}

// line is the line-up that the i-th operation of a transaction has read.
func line(resp *clientv3.TxnResponse, i int) lineUp {
	return lineOf((*clientv3.GetResponse)(resp.Responses[i].GetResponseRange()))
}
