package format

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// OtherType returns the type of a key that is not a string, from the owner that the scripts report for it.
func OtherType(owner string) (kind string, ok bool) {
	kind, open := strings.CutPrefix(owner, "(")
	kind, closed := strings.CutSuffix(kind, ")")
	return kind, open && closed && kind != "empty"
}

// IsDamaged reports whether owner is the value of a lock of Holdfast that another program has changed: its
// number is no token.
func IsDamaged(owner string) bool {
	id, _, more := strings.Cut(owner, " ")
	return more && quorum.ClientOf(id) != ""
}

// DescribeForeign describes an owner that is not a client of this format.
func DescribeForeign(owner string) driver.Holder {
	kind, other := OtherType(owner)
	switch {
	case kind == "hash" && other:
		return driver.Holder{Program: "a hash (Redisson?)"}
	case kind == "other" && other: // the permission for TYPE is missing
		return driver.Holder{Program: "a key of another type"}
	case other:
		return driver.Holder{Program: "a key of type " + kind}
	case owner == wire.Empty:
		return driver.Holder{Program: "an empty value"}
	case IsDamaged(owner):
		return driver.Holder{Program: "a damaged lock of Holdfast, whose number is no token"}
	}
	if t := describeThread(owner); t != "" {
		return driver.Holder{Program: "Redisson, " + t}
	}
	for _, k := range otherLibraries() {
		if m := k.shape.FindStringSubmatch(owner); m != nil {
			return driver.Holder{Host: strings.Join(m[1:], ""), Program: "another library (" + k.name + "?)"}
		}
	}
	return driver.Holder{} // only the value is known
}

// otherLibraries lists other libraries by the form of their lock values. The group in brackets names a
// machine. It is built on first use, because most programs never need it.
var otherLibraries = sync.OnceValue(func() []otherLibrary {
	return []otherLibrary{
		{"redsync", regexp.MustCompile(`^[0-9A-Za-z+/]{22}==$`)}, // 16 bytes in base 64
		{"redislock", regexp.MustCompile(`^[0-9A-Za-z_-]{22}$`)}, // the same in the alphabet for URLs
		{"redis-py or node-redlock", regexp.MustCompile(`^[0-9a-f]{32}$`)},
		{"RedLock.net or Spring", regexp.MustCompile(`^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)},
		{"ShedLock", regexp.MustCompile(`^ADDED:[^@]*@(.+)$`)},
	}
})

// otherLibrary is another library.
type otherLibrary struct {
	name  string
	shape *regexp.Regexp
}

// maxThreads bounds the listed threads of a Redisson lock.
const maxThreads = "20"

// Fields returns the command that lists the holders of the lock on key, or nil if owner names them already.
func (f *Format) Fields(key, owner string) []string {
	kind, other := OtherType(owner)
	if !(other && kind == "hash") && !(f.java && quorum.ClientOf(owner) == "") {
		return nil
	}
	return []string{"HSCAN", key, "0", "COUNT", maxThreads}
}

// OtherData reports whether the key of a lock with that owner holds other data than a lock of this format.
func (f *Format) OtherData(owner string) bool {
	_, other := OtherType(owner)
	return f.java && other
}

// Scan returns the command that lists the keys after cursor that match a pattern.
func (f *Format) Scan(cursor, pattern, count string) []string {
	cmd := []string{"SCAN", cursor, "MATCH", pattern, "COUNT", count}
	if f.java && !strings.HasPrefix(pattern, wire.Companion) {
		cmd = append(cmd, "TYPE", "hash")
	}
	return cmd
}

// describeThread describes the holder of a Redisson lock as CLIENT:THREAD; "" for any other owner.
func describeThread(owner string) string {
	client, number, ok := strings.Cut(owner, ":")
	if !ok || len(client) != 36 || strings.Trim(client, "0123456789abcdef-") != "" {
		return ""
	}
	return fmt.Sprintf("thread %s of client %s", number, client)
}

// ParseThreads parses the fields of a hash as HSCAN lists them: CLIENT:THREAD for each thread that holds the lock,
// with the number of its acquisitions; and mode for read-write locks.
func ParseThreads(reply any) (driver.Holder, bool) {
	both, _ := reply.([]any)
	if len(both) != 2 {
		return driver.Holder{}, false
	}
	var threads []string
	fields, _ := both[1].([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := fields[i].(string)
		count, _ := fields[i+1].(string)
		if t := describeThread(field); t != "" {
			threads = append(threads, fmt.Sprintf("%s, %s times", t, count))
		}
	}
	slices.Sort(threads)
	return driver.Holder{Program: "Redisson, " + strings.Join(threads, "; ")}, len(threads) > 0
}
