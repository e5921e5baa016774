package engine

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A lock stands for as long as a quorum keeps it, also where the times that are
// left lie farther apart than 32 bits can count.
func TestTheTimeLeftIsThatOfTheLastNodeOfAQuorum(t *testing.T) {
	office(t, func(t *testing.T, e *Engine, _ []*desk) {
		const never = time.Duration(-1)
		for _, c := range []struct{ a, b, c, want time.Duration }{
			{time.Second, 4 * time.Second, 10 * time.Second, 4 * time.Second},
			{10 * time.Second, time.Second, 4 * time.Second, 4 * time.Second},
			{time.Second, time.Second, 50 * time.Second, time.Second},
			{never, time.Second, 4 * time.Second, 4 * time.Second},
			{never, time.Second, never, never},
		} {
			var views []View
			for _, left := range []time.Duration{c.a, c.b, c.c} {
				views = append(views, View{Owner: "o", Left: left})
			}
			st, err := e.Status("k", views)
			if err != nil || st.Remaining != c.want {
				t.Errorf("with %v, %v and %v on three nodes: %v left, %v; want %v", c.a, c.b, c.c, st.Remaining, err, c.want)
			}
		}
		views := []View{{Owner: "o", Left: 9 * time.Second}, {Owner: "o", Left: 3 * time.Second}, {Err: driver.ErrClosed}}
		if st, err := e.Status("k", views); err != nil || st.Remaining != 3*time.Second {
			t.Errorf("with 9 s and 3 s on two nodes: %v left, %v; want 3 s", st.Remaining, err)
		}
	})
}
