package driverkit

import "testing"

func TestLineLimitsPendingRequests(t *testing.T) {
	t.Parallel()
	var l Line
	for range DefaultRoom {
		if !l.Pass(Soon) {
			t.Fatalf("%+v: no turn though there is room", l.Load(0))
		}
	}
	if l.Pass(Soon) {
		t.Error("a turn beyond the room")
	}
	begun, turns := 0, make([]Turn, 10)
	for i := range turns {
		turns[i] = Turn{Rank: Later, Begin: func() { begun++ }}
		if l.Enter(&turns[i], 1) {
			t.Fatal("a turn beyond the room")
		}
	}
	l.Leave(5, true, func(load Load) int {
		if want := (Load{Room: DefaultRoom, Out: DefaultRoom, Waiting: 10}); load != want {
			t.Errorf("before the request left: %+v, want %+v", load, want)
		}
		return DefaultRoom + 4
	})
	if begun != 5 {
		t.Errorf("%d requests began when one left and the room grew by 4", begun)
	}
	if l.Withdraw(&turns[4]) || !l.Withdraw(&turns[9]) || l.Withdraw(&turns[9]) {
		t.Error("only a turn that waits can be withdrawn, and once")
	}
	l.Leave(6, false, func(Load) int { return 3 })
	if got, want := l.Load(8), (Load{Room: 3, Out: DefaultRoom + 3, Waiting: 4, Silence: 3}); got != want || begun != 5 {
		t.Errorf("after the room shrank: %+v, want %+v; %d requests began", got, want, begun)
	}
}

// Requests with the rank Soon wait all the time.
func TestLowerRankGetsEveryFourthTurn(t *testing.T) {
	t.Parallel()
	l := Line{room: 1}
	l.Pass(Soon)
	var order []Rank
	turns := make([]Turn, 16)
	for i := range turns {
		r := Soon
		if i%4 == 3 {
			r = Later
		}
		turns[i] = Turn{Rank: r, Begin: func() { order = append(order, r) }}
		l.Enter(&turns[i], 1)
	}
	for range turns[:8] {
		l.Leave(1, true, nil)
	}
	for i, r := range order {
		if want := i%4 == 3; (r == Later) != want {
			t.Fatalf("turns came in the order %v", order)
		}
	}
	if len(order) != 8 {
		t.Errorf("%d turns came, want 8", len(order))
	}
}
