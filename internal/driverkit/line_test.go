package driverkit

import "testing"

func TestLineLimitsPendingRequests(t *testing.T) {
	t.Parallel()
	var l Line
	for range DefaultRoom {
		if !l.Pass(Soon) {
			t.Fatalf("%+v: rejected a request though there is room", l.Load(0))
		}
	}
	if l.Pass(Soon) {
		t.Error("admitted a request beyond the limit")
	}
	begun, turns := 0, make([]Turn, 10)
	for i := range turns {
		turns[i] = Turn{Rank: Later, Begin: func() { begun++ }}
		if l.Enter(&turns[i], 1) {
			t.Fatal("admitted a request beyond the limit")
		}
	}
	l.Leave(5, true, func(load Load) int {
		if want := (Load{Room: DefaultRoom, Out: DefaultRoom, Waiting: 10}); load != want {
			t.Errorf("before the request ended: %+v, want %+v", load, want)
		}
		return DefaultRoom + 4
	})
	if begun != 5 {
		t.Errorf("%d requests started when one ended and the limit grew by 4", begun)
	}
	if l.Withdraw(&turns[4]) || !l.Withdraw(&turns[9]) || l.Withdraw(&turns[9]) {
		t.Error("withdraw: want true once, and only for a waiting request")
	}
	l.Leave(6, false, func(Load) int { return 3 })
	if got, want := l.Load(8), (Load{Room: 3, Out: DefaultRoom + 3, Waiting: 4, Silence: 3}); got != want || begun != 5 {
		t.Errorf("after the limit shrank: %+v, want %+v; %d requests started", got, want, begun)
	}
}

// Requests with the rank Soon keep the line busy all the time.
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
			t.Fatalf("order = %v", order)
		}
	}
	if len(order) != 8 {
		t.Errorf("%d requests started, want 8", len(order))
	}
}
