package format

import "testing"

// A lock must not be read as a hash only because its value is the word for one.
func TestFieldsAreReadOnlyFromHashes(t *testing.T) {
	t.Parallel()
	for owner, want := range map[string]bool{"(hash)": true, "hash": false, "(hash": false, "(list)": false, "(empty)": false, "": false} {
		if got := Plain.Fields("lock:k", owner) != nil; got != want {
			t.Errorf("the owner %q is asked for its fields: %v, want %v", owner, got, want)
		}
	}
}
