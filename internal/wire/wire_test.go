package wire

import (
	"strings"
	"testing"
)

func TestCompanionsShareTheSlotOfTheLock(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"lock:a":     "{lock:a}",
		"lock:{a}b":  "lock:{a}b",
		"{a}":        ":{a}",
		":{a}":       "::{a}",
		"a{b":        "{a{b}",
		"a{}b{c}":    "{9841}a{}b{c}", // an empty tag counts as none
		"lock:a}b":   "{1977}lock:a}b",
		"lock:a{b}c": "lock:a{b}c",
	} {
		fence, queue := Companions(key)
		if fence != "holdfast:fence:"+want || queue != "holdfast:queue:"+want {
			t.Errorf("companions of %q: %q, %q, want …%q", key, fence, queue, want)
		}
		if Slot(fence) != Slot(key) || Slot(queue) != Slot(key) {
			t.Errorf("slots of %q and its companions: %d, %d, %d", key, Slot(key), Slot(fence), Slot(queue))
		}
	}
}

// What is equal for a lock key and for its counter, no other lock key has.
func FuzzCompanionsBelongToOneLock(f *testing.F) {
	for _, key := range []string{"", "a", "{a}", ":{a}", "{", "}", "{}", "a{b}c", "{{a}}", ":"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" {
			return
		}
		fence, queue := Companions(key)
		for _, companion := range []string{fence, queue} {
			if Slot(companion) != Slot(key) {
				t.Fatalf("%q is in another slot than %q", companion, key)
			}
			if got := LockOf(companion); got != key {
				t.Fatalf("%q is of %q, not of %q", companion, got, key)
			}
		}
		if strings.TrimPrefix(fence, Fence) != strings.TrimPrefix(queue, Companion+"queue:") {
			t.Fatalf("counter %q and queue %q differ", fence, queue)
		}
	})
}
