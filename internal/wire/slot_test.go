package wire

import "testing"

// The slots come from CLUSTER KEYSLOT of a server.
func TestSlotsMatchServers(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"": 0, "123456789": 12739, "a": 15495, "{a}b": 15495, "b{a}c}": 15495, "a{}b": 13694, "lock:x}y": 9591} {
		if got := Slot(key); got != want {
			t.Errorf("Slot(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestShardMarkerIsInItsSlot(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for slot := range Slots {
		for _, prefix := range []string{"lock:", "", "billing:", "{x}"} {
			key := ShardKey(prefix, slot)
			if Slot(key) != slot || seen[key] {
				t.Fatalf("ShardKey(%q, %d) = %q, in slot %d", prefix, slot, key, Slot(key))
			}
			seen[key] = true
		}
	}
}
