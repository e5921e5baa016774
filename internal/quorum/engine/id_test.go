package engine

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

func TestOwnerIDIsNeverReused(t *testing.T) {
	t.Parallel()
	e := &Engine{client: quorum.NewClient()}
	seen := make(map[string]bool)
	for range 1000 {
		before := time.Now().Truncate(time.Microsecond)
		owner := e.nextOwner(&claim{note: "a note"}, time.Now())
		if quorum.ClientOf(owner) != e.client || quorum.NoteOf(owner) != "a note" || quorum.Since(owner).Before(before) || seen[owner] {
			t.Fatalf("%q: client %q, note %q, since %v, seen %v",
				owner, quorum.ClientOf(owner), quorum.NoteOf(owner), quorum.Since(owner), seen[owner])
		}
		seen[owner] = true
	}
}
