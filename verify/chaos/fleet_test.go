//go:build linux

package main

import (
	"slices"
	"testing"
)

// Grants between two builds are counted by the names of processes.
func TestClientsAreAssignedToTheirBuild(t *testing.T) {
	t.Parallel()
	f := &fleet{
		orders: []order{{Name: "holdfast1"}, {Name: "holdfast10"}},
		ships:  []*process{{were: []build{older, newer}}, {were: []build{newer}}},
	}
	for client, want := range map[string]build{"holdfast1.0": older, "holdfast1.1": newer, "holdfast10.0": newer} {
		if got := f.buildOf(client); got != want {
			t.Errorf("%s is of build %d, want %d", client, got, want)
		}
	}
	const found = "holdfast1.0/8 (token 5) was taken away by holdfast10.0/9:1, holdfast1.1/2 and holdfast1.0/3, until 1.5 s"
	if clients := f.olderIn(found); !slices.Equal(clients, []string{"holdfast1.0"}) {
		t.Errorf("%q are of the older build, want holdfast1.0", clients)
	}
	m := new(Mix)
	m.count(buildHistory(
		&attempt{client: "holdfast10.0", got: 7},
		&attempt{client: "holdfast1.0", got: 3},
		&attempt{client: "holdfast1.0", got: 4},
		&attempt{client: "holdfast1.0"}, // it was granted nothing
		&attempt{client: "holdfast1.1", got: 5, from: "x"},
		&attempt{client: "holdfast1.0", got: 9},
	), f.buildOf)
	if want := (Mix{Granted: [2]int{2, 3}, Passed: 2, Adopted: 1}); *m != want {
		t.Errorf("%+v, want %+v", *m, want)
	}
}
