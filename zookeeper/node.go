package zookeeper

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// A lock is a folder <path>/lock:<name>, a container that the servers delete some time after its last child.
// The holder and each waiter is a child <client>.<number>-<sequence>; the part before the hyphen is the owner.

// mark begins the name of each lock folder. No part of a path for locks begins with it. So the folder of a
// lock is never the path of other locks.
const mark = "lock:"

// value is the data of a node.
type value struct {
	driver.Holder
	Since time.Time     `json:"since"`
	TTL   time.Duration `json:"ttl"`
}

func (v value) text() string {
	text, _ := json.Marshal(v) // cannot fail: strings, numbers and a time
	return string(text)
}

func readValue(text []byte) (v value) {
	json.Unmarshal(text, &v) // ignore an error: a node of another program names no holder
	return v
}

// tokenOf returns the first token of a grant. Unlike in other services, tokens do not begin at the clock. An
// offset beside the locks would have to be raised repeatedly, each time with the zxid from which it counts,
// because two clients must not add different offsets.
func tokenOf(czxid int64) int64 { return czxid * driverkit.Block }

// entry is a child of a lock's folder. It is small, because a queue may have many.
type entry struct {
	name string // empty: no node
	seq  int32
}

// owner returns the owner whose claim has created the child.
func (e entry) owner() string {
	owner, _, _ := strings.Cut(e.name, "-")
	return owner
}

// readEntry parses the name of a child. The child of another program has no owner.
func readEntry(name string) (e entry, ok bool) {
	owner, seq, ok := strings.Cut(name, "-")
	n, err := strconv.ParseInt(seq, 10, 32)
	return entry{name, int32(n)}, ok && err == nil && owner != "" && len(seq) >= minDigits
}

// minDigits is the minimal number of digits of a sequence number. Shorter names are skipped, so that they cost no
// memory.
const minDigits = 10

// sequenceLimit is the first sequence number that grants no lock. Numbers have 31 bits; after the last, the servers
// repeat numbers, and the order of waiters is lost.
const sequenceLimit = 1<<31 - 1<<24

// hasUsedUpNumbers reports whether the numbers of a folder are used up, from the number of one of its nodes.
func hasUsedUpNumbers(seq int32) bool { return seq >= sequenceLimit || seq < 0 }

// lineEntries returns the children of a folder in queue order.
func (r *request) lineEntries() (l []entry, err error) {
	if n := r.reply.count(4 + minDigits); n > 0 {
		l = make([]entry, 0, n)
	}
	for name := range r.reply.names() {
		if e, ok := readEntry(name); ok && !hasUsedUpNumbers(e.seq) {
			l = append(l, e)
		}
	}
	slices.SortFunc(l, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
	return l, r.reply.err
}

// placeOf returns the index of an owner in the queue; -1: not found.
func placeOf(owner string, l []entry) int {
	return slices.IndexFunc(l, func(e entry) bool { return e.owner() == owner })
}

// folderOf returns the path of the folder of a lock.
func (d *Driver) folderOf(name string) string { return d.root + "/" + mark + url.PathEscape(name) }

// nameOf returns the name of the lock to which a child of the root belongs, if it belongs to one.
func nameOf(part string) (string, bool) {
	escaped, ok := strings.CutPrefix(part, mark)
	name, err := url.PathUnescape(escaped)
	return name, ok && err == nil && name != ""
}
