package holdfast

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/memory"
)

// Who gets a lease inside the process may end it before the one that had it has told of anything.
func TestHandOverEventPrecedesTheNextEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		c, err := New(memory.New(1), &Options{Hooks: Hooks{
			Acquired: func(e AcquiredEvent) { told = append(told, fmt.Sprint("acquired ", e.Token)) },
			Released: func(e ReleasedEvent) { told = append(told, fmt.Sprint("released ", e.Token)) },
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		first, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			next, err := c.Acquire(t.Context(), "k", nil)
			if err == nil {
				err = next.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		c.mu.Lock()
		e := first.endHold(time.Now())
		c.mu.Unlock()
		time.Sleep(time.Second) // until the next has released
		e.sendEvents(c)
		if err := c.releaseOnService(t.Context(), e); err != nil {
			t.Error(err)
		}
		c.Close()
		one, two := first.Token(), first.Token()+1
		want := []string{fmt.Sprint("acquired ", one), fmt.Sprint("released ", one), fmt.Sprint("acquired ", two), fmt.Sprint("released ", two)}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
