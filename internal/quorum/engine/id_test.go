package engine

import (
	"strings"
	"testing"
	"time"
)

// FuzzOwnerIDs holds that what stands in a lock is read as an id of ours only where
// it is one, and without a panic.
func FuzzOwnerIDs(f *testing.F) {
	e := &Engine{client: newClientID()}
	for _, owner := range []string{e.nextOwner(), "", ".", "a.", ".1", "a.1", "a.b.1", "a.-1", "a.+1", "a.zzzzzzzzzzzzzz", "Zm9yZWlnbg==", "a.1+3", "a. 1", "db7.example.4711"} {
		f.Add(owner)
	}
	f.Fuzz(func(t *testing.T, owner string) {
		client, since := ClientOf(owner), Since(owner)
		if client == "" {
			if !since.IsZero() {
				t.Errorf("%q is nobody's and of %v", owner, since)
			}
			return
		}
		if strings.Contains(client, ".") || !strings.HasPrefix(owner, client+".") {
			t.Errorf("%q is of client %q", owner, client)
		}
	})
}

func TestOwnerIDsAreReadAsTheyWereMade(t *testing.T) {
	t.Parallel()
	e := &Engine{client: newClientID()}
	seen := make(map[string]bool)
	for range 1000 {
		before := time.Now().Truncate(time.Microsecond)
		owner := e.nextOwner()
		if ClientOf(owner) != e.client || Since(owner).Before(before) || seen[owner] {
			t.Fatalf("%q: client %q, since %v, seen %v", owner, ClientOf(owner), Since(owner), seen[owner])
		}
		seen[owner] = true
	}
}
