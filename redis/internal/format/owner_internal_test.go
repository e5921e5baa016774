package format

import "testing"

// A lock whose value is the word "hash" must not be read as a hash.
func TestFieldsAreReadOnlyFromHashes(t *testing.T) {
	t.Parallel()
	for owner, want := range map[string]bool{"(hash)": true, "hash": false, "(hash": false, "(list)": false, "(empty)": false, "": false} {
		if got := Plain.Fields("lock:k", owner) != nil; got != want {
			t.Errorf("owner %q is read from fields: %v, want %v", owner, got, want)
		}
	}
}
