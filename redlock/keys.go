package redlock

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// keys names the keys of a lock.
func (o *Options) keys(name string) engine.Lock { return o.format().Lock(o.Prefix, name, o.Cluster) }

// setKey names the marker of the set.
func (o *Options) setKey() string { return o.format().SetKey(o.Prefix) }

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
