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

// The keys of a lock are a folder, <prefix><name>,, with a key for each attempt that has
// the lock or waits for it: <client>.<number>. An owner is that place in the folder, the
// lease of the key, and how often the key was changed: <client>.<number>.<lease>.<changes>. So
// a lock that is adopted keeps its place and its lease, and has a new owner.
//
// Prefixes end in a slash and have no comma, and names have neither of them in a key. So no
// key is of two locks, even where one prefix begins with another.

const (
	// mark ends a name.
	mark = ","
	// adoptions is the number of grants that fit between two revisions: the first one, and the grants
	// of clients that adopt it.
	adoptions = 32
)

// value is the data of a key.
type value struct {
	driver.Holder
	Since     time.Time `json:"since"`
	Adoptable bool      `json:"adoptable,omitempty"` // driver.Request.Adoptable
	Adopter   string    `json:"adopter,omitempty"`   // a place that is of no other adopter
	Base      int64     `json:"base,omitempty"`      // of its tokens
	Kept      bool      `json:"kept,omitempty"`      // the holder has released it, and it stands for its MinHold
}

func (v value) text() string {
	text, _ := json.Marshal(v) // strings, numbers and a time
	return string(text)
}

// id is the content of an owner.
type id struct {
	place string
	lease clientv3.LeaseID
	moves int64 // how often the key was changed since it was created
}

// entry is a key.
type entry struct {
	id
	key      string // empty: there is none
	revision int64  // that created it
	owner    string
	token    int64 // 0: it is nobody's
	value    value
}

func readEntry(kv *mvccpb.KeyValue) entry {
	e := entry{key: string(kv.Key), revision: kv.CreateRevision}
	e.id = id{e.key[strings.LastIndex(e.key, mark)+1:], clientv3.LeaseID(kv.Lease), kv.Version - 1}
	json.Unmarshal(kv.Value, &e.value) // the key of another program names no holder
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

// tokenOf is the first token of a grant.
func tokenOf(base, revision, moves int64) int64 {
	return base + (revision*adoptions+min(moves, adoptions-1))*driverkit.Block
}

func (i id) owner(adoptable bool) string {
	owner := i.place + "." + strconv.FormatInt(int64(i.lease), 16) + "." + strconv.FormatInt(i.moves, 10)
	if adoptable {
		owner = driver.Adoptable(owner)
	}
	return owner
}

// parseOwner reverses id.owner. An owner of another form gets the lease 0, which no lease has.
func parseOwner(owner string) (i id) {
	if driver.IsAdoptable(owner) {
		owner = strings.TrimSuffix(owner, driver.Adoptable(""))
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

// compareUnchanged compares that nobody has changed the key since, nor deleted it. A place is never used for another key.
func (i id) compareUnchanged(folder string) clientv3.Cmp {
	return clientv3.Compare(clientv3.Version(folder+i.place), "=", i.moves+1)
}

// escapeName leaves no slash and no mark in a name, and works byte by byte, so that it keeps prefixes.
func escapeName(name string) string { return url.PathEscape(name) }

// messagePrefix begins the names of the keys by which Force tells a holder, of which the owner
// follows. No name of a lock is empty.
func (d *Driver) messagePrefix() string { return d.prefix + mark }

func (d *Driver) folderOf(name string) string { return d.prefix + escapeName(name) + mark }

// nameOf is the name of the lock that key is for.
func (d *Driver) nameOf(key string) (string, bool) {
	text, _, ok := strings.Cut(strings.TrimPrefix(key, d.prefix), mark)
	name, err := url.PathUnescape(text)
	return name, ok && err == nil && name != "" && !strings.Contains(text, "/")
}

// lineUp is the line of a lock: its holder, and the number of waiters.
type lineUp struct {
	first entry
	keys  int
}

func (l lineUp) waiterCount() int { return max(l.keys-1, 0) }

func (l *lineUp) add(e entry) {
	if l.keys++; l.first.key == "" || e.revision < l.first.revision {
		l.first = e
	}
}

// getFirst reads the line-up of a lock.
func (d *Driver) getFirst(name string) clientv3.Op {
	return clientv3.OpGet(d.folderOf(name), clientv3.WithFirstCreate()...)
}

func lineOf(resp *clientv3.GetResponse) lineUp {
	l := lineUp{keys: int(resp.Count)}
	if len(resp.Kvs) > 0 {
		l.first = readEntry(resp.Kvs[0])
	}
	return l
}

// lineFrom returns the line-up that the i-th operation of a transaction has read.
func lineFrom(resp *clientv3.TxnResponse, i int) lineUp {
	return lineOf((*clientv3.GetResponse)(resp.Responses[i].GetResponseRange()))
}
