package wire

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestQueueAndCounterShareLockSlot(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"lock:a":     "{lock:a}",
		"lock:{a}b":  "lock:{a}b",
		"{a}":        ":{a}",
		":{a}":       "::{a}",
		"a{b":        "{a{b}",
		"a{}b{c}":    "{9841}a{}b{c}", // an empty tag does not count
		"lock:a}b":   "{1977}lock:a}b",
		"lock:a{b}c": "lock:a{b}c",
	} {
		fence, queue := SlotFence(key), QueueKey(key)
		if queue != "holdfast:queue:"+want || Tagged(key) != want {
			t.Errorf("%q: queue %q, tagged %q, want …%q", key, queue, Tagged(key), want)
		}
		if Slot(fence) != Slot(key) || Slot(queue) != Slot(key) {
			t.Errorf("slots of %q, its counter and its queue: %d, %d, %d", key, Slot(key), Slot(fence), Slot(queue))
		}
	}
}

// The locks of a hash slot share one counter, and no other lock has it.
func TestSlotHasOneCounter(t *testing.T) {
	t.Parallel()
	counters := make(map[string]int)
	for i := range 3 * Slots {
		key := "lock:" + strconv.Itoa(i)
		fence := SlotFence(key)
		slot, known := counters[fence]
		if known && slot != Slot(key) || Slot(fence) != Slot(key) {
			t.Fatalf("%q, of slot %d, has counter %q of slot %d", key, Slot(key), fence, Slot(fence))
		}
		counters[fence] = Slot(key)
	}
	seen := make(map[int]string)
	for fence, slot := range counters {
		if other, twice := seen[slot]; twice {
			t.Fatalf("slot %d has the counters %q and %q", slot, fence, other)
		}
		seen[slot] = fence
	}
	if got, want := SlotFence("lock:{a}b"), SlotFence("a"); got != want {
		t.Errorf("counters %q and %q in one slot", got, want)
	}
}

// A queue belongs to one lock, and is in its slot. So is the counter.
func FuzzQueuesBelongToOneLock(f *testing.F) {
	for _, key := range []string{"", "a", "{a}", ":{a}", "{", "}", "{}", "a{b}c", "{{a}}", ":"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" {
			return
		}
		queue := QueueKey(key)
		for _, companion := range []string{SlotFence(key), queue, "x" + Tagged(key)} {
			if Slot(companion) != Slot(key) {
				t.Fatalf("%q is in another slot than %q", companion, key)
			}
		}
		if got := LockOf(queue); got != key {
			t.Fatalf("%q is of %q, not of %q", queue, got, key)
		}
		if Tagged(key) != strings.TrimPrefix(queue, Queue) {
			t.Fatalf("%q and %q differ in their tags", Tagged(key), queue)
		}
	})
}

// A Redis Cluster executes a script on the shard that has all of its KEYS, so a script must not touch any
// other key. (Redisson's format supports one server only; its scripts derive the keys of the Java client from
// the lock's name.)
func TestScriptsTouchOnlyTheirKeys(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`(?m)^local lock, (?:fence, )?queue(?:, owner)? = (.*)$`)
	called := regexp.MustCompile(`(?:\bcall|\bredis\.p?call|\btry)\('([A-Z]+)'((?:, [^,()]+(?:\([^()]*\))?)*)`)
	keyless := []string{"TIME", "PUBLISH", "PUBSUB"}
	commands := 0
	for _, s := range Plain.Scripts() {
		for _, m := range named.FindAllStringSubmatch(s.Text, -1) {
			for value := range strings.SplitSeq(m[1], ", ") {
				if !strings.HasPrefix(value, "KEYS[") && value != "ARGV[1]" {
					t.Errorf("a key is %s, not one of KEYS:\n%s", value, s.Text)
				}
			}
		}
		for _, m := range called.FindAllStringSubmatch(s.Text, -1) {
			command, args := m[1], strings.Split(strings.TrimPrefix(m[2], ", "), ", ")
			if slices.Contains(keyless, command) {
				continue
			}
			commands++
			if command != "EXISTS" {
				args = args[:1]
			}
			for _, key := range args {
				if !slices.Contains([]string{"lock", "fence", "queue", "KEYS[1]", "KEYS[2]", "KEYS[4]"}, key) {
					t.Errorf("%s has the key %s, which is none of KEYS:\n%s", command, key, s.Text)
				}
			}
		}
	}
	if commands < 50 {
		t.Errorf("only %d commands were found", commands)
	}
}
