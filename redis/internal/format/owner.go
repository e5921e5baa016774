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

// OtherType is the type of the key if owner stands for one that is no string.
func OtherType(owner string) (kind string, ok bool) {
	kind, open := strings.CutPrefix(owner, "(")
	kind, closed := strings.CutSuffix(kind, ")")
	return kind, open && closed && kind != "empty"
}

// Damaged reports whether owner is the value of a lock of ours that another program has changed: its number is no token.
func Damaged(owner string) bool {
	id, _, more := strings.Cut(owner, " ")
	return more && quorum.ClientOf(id) != ""
}

// Stranger is what is known of an owner that is no client of this format.
func Stranger(owner string) driver.Holder {
	kind, other := OtherType(owner)
	switch {
	case kind == "hash" && other:
		return driver.Holder{Program: "a hash (Redisson?)"}
	case kind == "other" && other: // the right to TYPE is missing
		return driver.Holder{Program: "a key of another type"}
	case other:
		return driver.Holder{Program: "a key of type " + kind}
	case owner == wire.Empty:
		return driver.Holder{Program: "an empty value"}
	case Damaged(owner):
		return driver.Holder{Program: "a damaged lock of Holdfast, whose number is no token"}
	}
	if t := thread(owner); t != "" {
		return driver.Holder{Program: "Redisson, " + t}
	}
	for _, k := range kin() {
		if m := k.shape.FindStringSubmatch(owner); m != nil {
			return driver.Holder{Host: strings.Join(m[1:], ""), Program: "another library (" + k.name + "?)"}
		}
	}
	return driver.Holder{} // the value says everything
}

// kin are other libraries, by the values that they give their locks. What is in brackets
// names a machine. Most programs never need them.
var kin = sync.OnceValue(func() []relative {
	return []relative{
		{"redsync", regexp.MustCompile(`^[0-9A-Za-z+/]{22}==$`)}, // 16 bytes in base 64
		{"redislock", regexp.MustCompile(`^[0-9A-Za-z_-]{22}$`)}, // the same for URLs
		{"redis-py or node-redlock", regexp.MustCompile(`^[0-9a-f]{32}$`)},
		{"RedLock.net or Spring", regexp.MustCompile(`^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)},
		{"ShedLock", regexp.MustCompile(`^ADDED:[^@]*@(.+)$`)},
	}
})

// relative is another library.
type relative struct {
	name  string
	shape *regexp.Regexp
}

// threadsMost is how many threads of a lock of Redisson are asked for.
const threadsMost = "20"

// Fields is the command that lists who has the lock on key, where owner does not say all of that; nil where it does.
func (f *Format) Fields(key, owner string) []string {
	kind, other := OtherType(owner)
	if !(other && kind == "hash") && !(f.java && quorum.ClientOf(owner) == "") {
		return nil
	}
	return []string{"HSCAN", key, "0", "COUNT", threadsMost}
}

// OtherData says whether the key of a lock with that owner is no lock in this format, but other data.
func (f *Format) OtherData(owner string) bool {
	_, other := OtherType(owner)
	return f.java && other
}

// Scan is the command that lists the keys after cursor that fit a pattern of keys.
func (f *Format) Scan(cursor, pattern, count string) []string {
	cmd := []string{"SCAN", cursor, "MATCH", pattern, "COUNT", count}
	if f.java && !strings.HasPrefix(pattern, wire.Companion) {
		cmd = append(cmd, "TYPE", "hash")
	}
	return cmd
}

// thread describes who holds a lock of Redisson as CLIENT:THREAD; "" for any other owner.
func thread(owner string) string {
	client, number, ok := strings.Cut(owner, ":")
	if !ok || len(client) != 36 || strings.Trim(client, "0123456789abcdef-") != "" {
		return ""
	}
	return fmt.Sprintf("thread %s of client %s", number, client)
}

// Threads reads the fields of a hash as HSCAN lists them: for each thread that has the
// lock CLIENT:THREAD, and how often it has taken it; and for read-write locks, mode.
func Threads(reply any) (driver.Holder, bool) {
	both, _ := reply.([]any)
	if len(both) != 2 {
		return driver.Holder{}, false
	}
	var threads []string
	fields, _ := both[1].([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := fields[i].(string)
		count, _ := fields[i+1].(string)
		if t := thread(field); t != "" {
			threads = append(threads, fmt.Sprintf("%s, %s times", t, count))
		}
	}
	slices.Sort(threads)
	return driver.Holder{Program: "Redisson, " + strings.Join(threads, "; ")}, len(threads) > 0
}
