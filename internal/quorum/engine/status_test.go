package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// A lock lasts as long as a quorum keeps it, even if the remaining times differ by more than 32 bits.
func TestStatusTimeLeftNeedsQuorum(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) {
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

var errDown = errors.New("down")

// grantOf returns a node's view of a grant whose first token is token.
func grantOf(owner string, token int64) View {
	return View{Owner: owner, Left: time.Second, Token: token}
}

// ownerID returns an owner id of this protocol.
func ownerID(name string) string {
	return strings.ToUpper(name) + strings.Repeat("A", 26-len(name)) + ".1"
}

func TestStatusHolderNeedsQuorum(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) {
		a, b, down := grantOf(ownerID("a"), 100), grantOf(ownerID("b"), 200), View{Err: errDown}
		for name, c := range map[string]struct {
			views []View
			owner string
		}{
			"all":                                   {[]View{a, a, a}, a.Owner},
			"a majority, beside another":            {[]View{b, a, a}, a.Owner},
			"a majority, beside a free node":        {[]View{a, {}, a}, a.Owner},
			"a majority, beside a silent node":      {[]View{a, a, down}, a.Owner},
			"one of two that answered":              {[]View{a, {}, down}, ""},
			"each node another":                     {[]View{a, b, grantOf(ownerID("c"), 300)}, ""},
			"one node of three":                     {[]View{{}, {}, a}, ""},
			"two that differ beside a silent third": {[]View{a, b, down}, ""},
		} {
			st, err := e.Status("k", c.views)
			if err != nil || st.Held != (c.owner != "") || st.Owner != c.owner {
				t.Errorf("%s: Status() = held %v by %q, %v; want %q", name, st.Held, st.Owner, err, c.owner)
			}
		}
	})
}

func TestStatusWithoutQuorumKeepsNodeViews(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) {
		a := grantOf(ownerID("a"), 100)
		a.Waiters = 3
		st, err := e.Status("k", []View{{Err: errDown}, a, {Err: errDown}})
		u, ok := errors.AsType[*driver.UnavailableError](err)
		if !ok || u.Need != 2 || len(u.Nodes) != 2 || u.Nodes[0].Node != "a" || u.Nodes[1].Node != "c" || !errors.Is(err, errDown) {
			t.Errorf("Status() = %v, want two nodes that are down", err)
		}
		if st.Held || st.Owner != "" || len(st.Nodes) != 3 {
			t.Fatalf("Status() = %+v, want nothing for certain and three nodes", st)
		}
		if n := st.Nodes[1]; n.Owner != a.Owner || n.Token != 100 || n.Remaining != time.Second || n.Waiters != 3 || n.Err != nil {
			t.Errorf("answering node: %+v", n)
		}
		if n := st.Nodes[2]; !errors.Is(n.Err, errDown) {
			t.Errorf("down node: %+v", n)
		}
	})
}

// A quorum has the earlier holder's token, which raised its counters. A node that missed both its commit and
// the next holder's gives the next holder the same token again.
func TestStatusOmitsTokensOfEarlierGrants(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) {
		owner, down := ownerID("a"), View{Err: errDown}
		at := func(token int64) View { return grantOf(owner, token) }
		for name, c := range map[string]struct {
			views []View
			want  int64   // the token of the grant
			all   []int64 // all tokens that belong to the grant
		}{
			"all the same":                           {[]View{at(100), at(100), at(100)}, 100, []int64{100, 131}},
			"one has given a later one":              {[]View{at(100), at(164), at(100)}, 100, []int64{100, 131, 164, 195}},
			"one has not heard of the commit":        {[]View{at(132), at(100), at(132)}, 132, []int64{132, 163}},
			"of two the higher":                      {[]View{at(164), at(100), down}, 164, []int64{164, 195}},
			"another's does not count":               {[]View{at(100), at(132), grantOf(ownerID("b"), 164)}, 132, []int64{132, 163}},
			"another library's lock has none":        {[]View{{Owner: "theirs"}, {Owner: "theirs"}, {Owner: "theirs"}}, 0, nil},
			"a silent node's does not count at all":  {[]View{at(164), at(164), {Owner: owner, Token: 100, Err: errDown}}, 164, []int64{164, 195}},
			"the counter under another's lock":       {[]View{{Owner: "theirs", Token: 100}, {Owner: "theirs", Token: 100}, {}}, 100, nil},
			"one that was released for its MinHold":  {[]View{grantOf(owner+"!", 100), grantOf(owner+"!", 100), {}}, 100, nil},
			"nobody's, as each node names another":   {[]View{grantOf(ownerID("b"), 100), at(100), {}}, 0, nil},
			"… also where one has no lock":           {[]View{at(100), at(100), {}}, 100, []int64{100, 131}},
			"… and where one that has it is not up":  {[]View{at(100), down, at(100)}, 100, []int64{100, 131}},
			"… and where one that lacks it, is not":  {[]View{at(100), at(132), down}, 132, []int64{132, 163}},
			"… nor at the bounds of a block of both": {[]View{at(132), at(132), at(100)}, 132, []int64{132, 163}},
		} {
			st, err := e.Status("k", c.views)
			if err != nil || st.Token != c.want {
				t.Errorf("%s: token %d, %v; want %d", name, st.Token, err, c.want)
			}
			if its, err := e.TokenBelongs(st, c.views, 0); err != nil || its != (st.Held && c.all == nil) {
				t.Errorf("%s: found no token: %v, %v", name, its, err)
			}
			for _, token := range []int64{99, 100, 131, 132, 163, 164, 195, 196} {
				its, err := e.TokenBelongs(st, c.views, token)
				if its != slices.Contains(c.all, token) || its && err != nil {
					t.Errorf("%s: found token %d: %v, %v", name, token, its, err)
				}
			}
		}
	})
}

// While a silent node may know the grant of a token, the token does not count as foreign.
func TestTokenMatchNeedsEnoughNodes(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) {
		a, later, b, down := grantOf(ownerID("a"), 100), grantOf(ownerID("a"), 164), grantOf(ownerID("b"), 100), View{Err: errDown}
		for name, c := range map[string]struct {
			views []View
			token int64
			want  error
		}{
			"a node of a holder that may have a later token": {[]View{a, later, down}, 110, driver.ErrUnavailable},
			"one node, the others have none and are down":    {[]View{a, {}, down}, 110, driver.ErrUnavailable},
			"one node, and all others say otherwise":         {[]View{a, later, {}}, 110, nil},
			"no node":                                        {[]View{a, a, down}, 99, nil},
			"of another beside the holder":                   {[]View{later, later, b}, 110, nil},
		} {
			st, err := e.Status("k", c.views)
			if err != nil {
				t.Fatal(err)
			}
			if its, err := e.TokenBelongs(st, c.views, c.token); its || !errors.Is(err, c.want) {
				t.Errorf("%s: %v, %v; want %v", name, its, err, c.want)
			}
		}
	})
}

// A force counts once the holder can no longer have a quorum. It fails only when so many nodes have denied it
// that this cannot happen any more.
func TestForceCountsOnceHolderLacksQuorum(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) {
		for name, c := range map[string]struct {
			done quorum.Set
			errs []error
			ok   bool
			err  error
		}{
			"everywhere":                      {done: quorum.All(3), errs: []error{nil, nil, nil}, ok: true},
			"two of three":                    {done: 0b011, errs: []error{nil, nil, nil}, ok: true},
			"two of three, the third is down": {done: 0b110, errs: []error{errDown, nil, nil}, ok: true},
			"one of three":                    {done: 0b001, errs: []error{nil, nil, nil}},
			"one, and one that is down":       {done: 0b001, errs: []error{nil, errDown, nil}, err: driver.ErrUnavailable},
			"none, and two that are down":     {errs: []error{nil, errDown, errDown}, err: driver.ErrUnavailable},
			"none, and one that is down":      {errs: []error{nil, errDown, nil}},
			"nowhere":                         {errs: []error{nil, nil, nil}},
		} {
			ok, err := e.ForceResult(c.done, c.errs)
			if ok != c.ok || !errors.Is(err, c.err) {
				t.Errorf("%s: Forced() = %v, %v; want %v, %v", name, ok, err, c.ok, c.err)
			}
		}
	})
}

// A lease is lost only if so many nodes deny it that the others are no quorum. Silent nodes do not count.
func TestCheckTellsLossFromOutage(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, _ []*manualNode) { // 3 nodes
		mine, free, down := grantOf(ownerID("a"), 100), View{}, View{Err: errDown}
		others := grantOf(ownerID("b"), 200)
		for name, c := range map[string]struct {
			views []View
			want  error
		}{
			"all":                              {[]View{mine, mine, mine}, nil},
			"a majority, beside a silent node": {[]View{mine, down, mine}, nil},
			"a majority, beside another":       {[]View{mine, others, mine}, nil},
			"one, beside two free nodes":       {[]View{free, mine, free}, driver.ErrLost},
			"another on two":                   {[]View{others, others, down}, driver.ErrLost},
			"one, beside another and silence":  {[]View{mine, others, down}, driver.ErrUnavailable},
			"one against, beside silence":      {[]View{free, down, down}, driver.ErrUnavailable},
			"silence":                          {[]View{down, down, down}, driver.ErrUnavailable},
		} {
			err := e.Check(driver.Grant{Key: "k", Owner: mine.Owner}, c.views)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			if u, ok := errors.AsType[*driver.UnavailableError](err); ok && len(u.Nodes) == 0 {
				t.Errorf("%s: %v names no node", name, err)
			}
		}
	})
}
