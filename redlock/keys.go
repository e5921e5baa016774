package redlock

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// keys names the three keys of a lock.
func (o *Options) keys(name string) engine.Lock {
	key := name
	if !o.BareKeys {
		key = o.Prefix + name
	}
	fence, queue := wire.Companions(key)
	return engine.Lock{Name: name, Key: key, Fence: fence, Queue: queue}
}

// name is the lock that a key on a node stands for; ok is false if it stands for
// none.
func (o *Options) name(key string) (name string, ok bool) {
	if strings.HasPrefix(key, wire.Companion) {
		return "", false
	}
	if o.BareKeys {
		return key, true
	}
	return strings.CutPrefix(key, o.Prefix)
}
