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
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// The keys of a lock form a folder, <prefix><name>,, with one key for the holder and for each waiter:
// <client>.<number>. An owner consists of that name in the folder, the lease of the key, and the number of
// changes to the key: <client>.<number>.<lease>.<changes>. So an adopted lock keeps its key and its lease, and
// has a new owner.
//
// Prefixes end in a slash and have no comma; names are escaped, so they have neither. So no key belongs to two
// locks, even if one prefix begins with another.

const (
	// mark ends a name in a key.
	mark = ","
	// adoptions is the number of grants for which there are tokens between two revisions: the first grant and
	// its adopters.
	adoptions = 32
)

// value is the data of a key.
type value struct {
	driver.Holder
	Since     time.Time `json:"since"`
	Adoptable bool      `json:"adoptable,omitempty"` // driver.Request.Adoptable
	Adopter   string    `json:"adopter,omitempty"`   // place of the adopter's claim, which no other adopter has
	Base      int64     `json:"base,omitempty"`      // base of its tokens
	Kept      bool      `json:"kept,omitempty"`      // released, and kept for the rest of its MinHold
}

func (v value) text() string {
	text, _ := json.Marshal(v) // cannot fail: strings, numbers and a time
	return string(text)
}

// id identifies an owner.
type id struct {
	place string
	lease clientv3.LeaseID
	moves int64 // number of changes since the key was created
}

// entry is a key of a lock.
type entry struct {
	id
	key      string // empty: no key
	revision int64  // revision that created it
	owner    string
	token    int64 // 0: the key belongs to no client
	value    value
}

func readEntry(kv *mvccpb.KeyValue) entry {
	e := entry{key: string(kv.Key), revision: kv.CreateRevision}
	e.id = id{e.key[strings.LastIndex(e.key, mark)+1:], clientv3.LeaseID(kv.Lease), kv.Version - 1}
	json.Unmarshal(kv.Value, &e.value) // ignore an error: a key of another program names no holder
	e.owner = e.id.owner(e.value.Adoptable)
	if !e.value.Kept {
		e.token = tokenOf(e.value.Base, e.revision, e.moves)
	}
	return e
}

// hasToken reports whether the token belongs to the grant of the key.
func (e entry) hasToken(token int64) bool {
	if e.value.Kept {
		return token == 0
	}
	return e.key != "" && driverkit.InBlock(e.token, token)
}

// tokenOf returns the first token of a grant.
func tokenOf(base, revision, moves int64) int64 {
	return base + (revision*adoptions+min(moves, adoptions-1))*driverkit.Block
}

func (i id) owner(adoptable bool) string {
	owner := i.place + "." + strconv.FormatInt(int64(i.lease), 16) + "." + strconv.FormatInt(i.moves, 10)
	if adoptable {
		owner = driver.MarkAdoptable(owner)
	}
	return owner
}

// parseOwner parses the result of id.owner. Any other text gets the lease 0, which no lease has.
func parseOwner(owner string) (i id) {
	if driver.IsAdoptable(owner) {
		owner = strings.TrimSuffix(owner, driver.MarkAdoptable(""))
	}
	parts := strings.Split(owner, ".")
	if len(parts) != 4 {
		return id{}
	}
	lease, bad := strconv.ParseInt(parts[2], 16, 64)
	moves, worse := strconv.ParseInt(parts[3], 10, 64)
	if bad != nil || worse != nil {
		return id{}
	}
	return id{parts[0] + "." + parts[1], clientv3.LeaseID(lease), moves}
}

// compareUnchanged returns a condition: the key exists and is unchanged since i. A place is never used for
// another key.
func (i id) compareUnchanged(folder string) clientv3.Cmp {
	return clientv3.Compare(clientv3.Version(folder+i.place), "=", i.moves+1)
}

// escapeName escapes slashes and marks in a name. It works byte by byte, so a prefix of a name stays a prefix.
func escapeName(name string) string { return url.PathEscape(name) }

// messagePrefix begins the keys by which Force notifies a holder; the owner follows. No lock has an empty
// name.
func (d *Driver) messagePrefix() string { return d.prefix + mark }

func (d *Driver) folderOf(name string) string { return d.prefix + escapeName(name) + mark }

// nameOf returns the name of the lock to which key belongs.
func (d *Driver) nameOf(key string) (string, bool) {
	text, _, ok := strings.Cut(strings.TrimPrefix(key, d.prefix), mark)
	name, err := url.PathUnescape(text)
	return name, ok && err == nil && name != "" && !strings.Contains(text, "/")
}

// waitQueue is the state of a lock's queue: its first key, which has the lock, and the number of keys.
type waitQueue struct {
	first entry
	keys  int
}

func (l waitQueue) waiterCount() int { return max(l.keys-1, 0) }

func (l *waitQueue) add(e entry) {
	if l.keys++; l.first.key == "" || e.revision < l.first.revision {
		l.first = e
	}
}

// getFirst returns the operation that reads the first key of a lock and the number of its keys.
func (d *Driver) getFirst(name string) clientv3.Op {
	return clientv3.OpGet(d.folderOf(name), clientv3.WithFirstCreate()...)
}

func queueOf(resp *clientv3.GetResponse) waitQueue {
	l := waitQueue{keys: int(resp.Count)}
	if len(resp.Kvs) > 0 {
		l.first = readEntry(resp.Kvs[0])
	}
	return l
}

// queueFrom reads the result of getFirst from the i-th operation of a transaction.
func queueFrom(resp *clientv3.TxnResponse, i int) waitQueue {
	return queueOf((*clientv3.GetResponse)(resp.Responses[i].GetResponseRange()))
}
