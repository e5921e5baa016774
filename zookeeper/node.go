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

// A lock is a folder <path>/lock:<name>, a container that the servers delete some time after its
// last child. Each attempt that has the lock or waits for it is a child
// <client>.<number>-<sequence>, of which the first part is the owner.

// mark begins the name of each folder of a lock. No part of a path for locks begins with it. So
// the folder of a lock is never the path of other locks, whose folders would be in it.
const mark = "lock:"

// value is the data of a node.
type value struct {
	driver.Holder
	Since time.Time     `json:"since"`
	TTL   time.Duration `json:"ttl"`
}

func (v value) text() string {
	text, _ := json.Marshal(v) // strings, numbers and a time
	return string(text)
}

func readValue(text []byte) (v value) {
	json.Unmarshal(text, &v) // the node of another program names no holder
	return v
}

// tokenOf is the first token of a grant. Other services begin at the clock. An offset that is kept
// beside the locks would bring these tokens there only if it was raised again and again, each time
// with the transaction from which on it counts, as two clients must not add different ones.
func tokenOf(czxid int64) int64 { return czxid * driverkit.Block }

// entry is a child of a lock's folder.
type entry struct {
	name  string // empty: there is none
	owner string
	seq   int32
}

// readEntry takes the name of a child apart. Another program's has no owner.
func readEntry(name string) (e entry, ok bool) {
	owner, seq, ok := strings.Cut(name, "-")
	n, err := strconv.ParseInt(seq, 10, 32)
	return entry{name, owner, int32(n)}, ok && err == nil && owner != "" && len(seq) >= digits
}

// digits is the minimum number of digits of a sequence number. Shorter names are not worth the memory
// for an entry.
const digits = 10

// spent is the first number with which no claim takes the lock. Numbers have 31 bits. After the last
// one the servers give numbers again, and the order of waiters is lost.
const spent = 1<<31 - 1<<24

// isSpent reports whether the numbers of a folder are used up, going by one of its nodes.
func isSpent(seq int32) bool { return seq >= spent || seq < 0 }

// lineEntries returns the children of a folder in the order in which they have the lock.
func (r *request) lineEntries() (l []entry, err error) {
	if n := r.reply.count(4 + digits); n > 0 {
		l = make([]entry, 0, n)
	}
	for name := range r.reply.names() {
		if e, ok := readEntry(name); ok && !isSpent(e.seq) {
			l = append(l, e)
		}
	}
	slices.SortFunc(l, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
	return l, r.reply.err
}

// placeOf returns the place of an owner in line; -1: it is not there.
func placeOf(owner string, l []entry) int {
	return slices.IndexFunc(l, func(e entry) bool { return e.owner == owner })
}

// folderOf returns the path of the folder with the attempts at a lock.
func (d *Driver) folderOf(name string) string { return d.root + "/" + mark + url.PathEscape(name) }

// nameOf is the name of the lock that a child of the root is for, if it is for one.
func nameOf(part string) (string, bool) {
	escaped, ok := strings.CutPrefix(part, mark)
	name, err := url.PathUnescape(escaped)
	return name, ok && err == nil && name != ""
}
