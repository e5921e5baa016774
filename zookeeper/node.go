package zookeeper

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A lock is a folder <path>/<name>, a container that the servers delete some time after its
// last child. Each attempt that has the lock or waits for it is a child
// <client>.<number>-<sequence>, of which the first part is the owner.

// block is how many tokens a grant has.
const block = 32

// value is what a node says.
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

// tokenOf is the first token of a grant.
func tokenOf(czxid int64) int64 { return czxid * block }

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
	return entry{name, owner, int32(n)}, ok && err == nil && owner != ""
}

// line is the children of a folder in the order in which they have the lock. The servers
// count on from the highest number to the lowest, so that the difference tells the order.
func line(names []string) (l []entry) {
	for _, name := range names {
		if e, ok := readEntry(name); ok {
			l = append(l, e)
		}
	}
	slices.SortFunc(l, func(a, b entry) int { return int(a.seq - b.seq) })
	return l
}

// of is the place of an owner in line; -1: it is not there.
func of(owner string, l []entry) int {
	return slices.IndexFunc(l, func(e entry) bool { return e.owner == owner })
}

// folder is where the attempts at a lock are.
func (d *Driver) folder(name string) string {
	part := url.PathEscape(name)
	if part == "." || part == ".." {
		part = strings.ReplaceAll(part, ".", "%2E")
	}
	return d.root + "/" + part
}

// nameOf is the name of the lock that a child of the root is for.
func nameOf(part string) (string, bool) {
	name, err := url.PathUnescape(part)
	return name, err == nil && name != ""
}

// newOwner is an owner that was never used.
func (d *Driver) newOwner() string { return d.client + "." + strconv.FormatInt(d.seq.Add(1), 36) }
