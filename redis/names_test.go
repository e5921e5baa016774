package redis

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// FuzzNames checks that List shows a lock under the name with which it was acquired, with any prefix, and never
// shows Holdfast's other keys and probes.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"a", "{a}", ":{a}", "a{b}c", "lock:a", "holdfast:fence:7", "~probe:c", "*", "\x00", "é"} {
		f.Add(name, "lock:")
		f.Add(name, "{x}")
	}
	f.Fuzz(func(t *testing.T, name, prefix string) {
		for _, o := range []*Options{{Prefix: prefix}, {BareKeys: true}} {
			lock := o.lockKeys(name)
			if strings.HasPrefix(lock.Key, wire.Companion) {
				continue // Open rejects such prefixes, and the client such names
			}
			if got, ok := o.nameOf(lock.Key); ok == strings.HasPrefix(name, probeName) || ok && got != name {
				t.Errorf("prefix %q, bare %v: %q is listed as %q, %v", o.Prefix, o.BareKeys, name, got, ok)
			}
			for _, companion := range []string{lock.Fence, lock.Queue} {
				if got, ok := o.nameOf(companion); ok {
					t.Errorf("%q is listed as the lock %q", companion, got)
				}
			}
		}
	})
}
