package redlock

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/engine"
)

const (
	companion = "holdfast:" // what all keys begin with that are not locks
	setKey    = companion + "set"
	wakeName  = companion + "wake:"
	infoName  = companion + "client:"
)

// keys names the three keys of a lock so that all share a hash slot, and no two
// locks share a key.
func (o *Options) keys(name string) engine.Lock {
	lock := name
	if !o.BareKeys {
		lock = o.Prefix + name
	}
	tagged := lock
	switch {
	case !hasTag(lock):
		tagged = "{" + lock + "}"
	case lock[0] == '{' || lock[0] == ':':
		tagged = ":" + lock // the companions of "{x}" are not those of "x"
	}
	return engine.Lock{Name: name, Key: lock, Fence: companion + "fence:" + tagged, Queue: companion + "queue:" + tagged}
}

// name is the lock that a key on a node stands for; ok is false if it stands for
// none.
func (o *Options) name(key string) (name string, ok bool) {
	if strings.HasPrefix(key, companion) {
		return "", false
	}
	if o.BareKeys {
		return key, true
	}
	return strings.CutPrefix(key, o.Prefix)
}

// hasTag says whether Redis hashes only a part of key, between braces.
func hasTag(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.Index(rest, "}") > 0
}
