package redlock

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// keys names the three keys of a lock.
func (o *Options) keys(name string) engine.Lock {
	key := o.Prefix + name // with BareKeys there is none
	fence, queue := wire.Companions(key)
	if o.Format == FormatRedisson {
		fence = wire.RedissonFence(key)
	}
	return engine.Lock{Name: name, Key: key, Fence: fence, Queue: queue}
}

// setKey names the marker of the set.
func (o *Options) setKey() string {
	if o.Format == FormatRedisson {
		return wire.SetKey("redisson:" + o.Prefix)
	}
	if o.BareKeys {
		return wire.SetKey("")
	}
	return wire.SetKey(o.Prefix)
}

// sibling names the marker of clients that a user may take for clients of this set,
// and says which they are; "" where there are none.
func (o *Options) sibling() (marker, who string) {
	switch {
	case o.Format == FormatRedisson:
		return wire.Set, "clients without format=redisson"
	case o.BareKeys:
		return wire.Set, "clients without BareKeys (bare=true)"
	case o.setKey() == wire.Set:
		return wire.SetKey(""), "clients with BareKeys (bare=true)"
	}
	return "", ""
}

// probeKeys are those on which the rights are tried. With bare keys only the
// operator knows for which keys there are rights; the probe then uses the pattern
// of the companion keys.
func (o *Options) probeKeys(client string) engine.Lock {
	name := "~probe:" + client
	if o.Prefix == "" {
		name = wire.Companion + name
	}
	return o.keys(name)
}

// name is the lock that a key on a node stands for; ok is false if it stands for
// none.
func (o *Options) name(key string) (name string, ok bool) {
	if strings.HasPrefix(key, wire.Companion) {
		return "", false
	}
	return strings.CutPrefix(key, o.Prefix)
}

// otherType is the type of the key if owner stands for one that is no string.
func otherType(owner string) (kind string, ok bool) {
	kind, open := strings.CutPrefix(owner, "(")
	kind, closed := strings.CutSuffix(kind, ")")
	return kind, open && closed && kind != "empty"
}

// stranger is what is known of an owner that is no client of this format.
func stranger(owner string) driver.Holder {
	kind, other := otherType(owner)
	switch {
	case kind == "hash" && other:
		return driver.Holder{Program: "a hash (Redisson?)"}
	case kind == "other" && other: // the right to TYPE is missing
		return driver.Holder{Program: "a key of another type"}
	case other:
		return driver.Holder{Program: "a key of type " + kind}
	case owner == wire.Empty:
		return driver.Holder{Program: "an empty value"}
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
const threadsMost = 20

// thread describes who holds a lock of Redisson as CLIENT:THREAD; "" for any other owner.
func thread(owner string) string {
	client, number, ok := strings.Cut(owner, ":")
	if !ok || len(client) != 36 || strings.Trim(client, "0123456789abcdef-") != "" {
		return ""
	}
	return fmt.Sprintf("thread %s of client %s", number, client)
}

// redisson reads the fields of a hash as HSCAN lists them: for each thread that has the
// lock CLIENT:THREAD, and how often it has taken it; and for read-write locks, mode.
func redisson(reply any) (driver.Holder, bool) {
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
