package demo

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast"
)

func TestDemoKeepsEveryUpdate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		nodes := Memory()
		if err := errors.Join(Run(t.Context(), nodes, &out), nodes.Close()); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		for _, part := range []string{"nodes 2 and 4 are stopped", "the ledger rejects her", "0 lost, 0 doubled", "stale writes rejected: 1 of 1"} {
			if !strings.Contains(out.String(), part) {
				t.Errorf("the report lacks %q:\n%s", part, out.String())
			}
		}
	})
}

func TestDemoEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), act/2)
		defer cancel()
		nodes := Memory()
		defer nodes.Close()
		if err := Run(ctx, nodes, new(bytes.Buffer)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the context's error", err)
		}
	})
}

func TestAuditFindsEachFault(t *testing.T) {
	t.Parallel()
	good := []entry{{1, "a", 0, 7}, {2, "b", 0, 8}, {3, "a", 1, 8}}
	for _, row := range []struct {
		name    string
		entries []entry
		want    audit
	}{
		{"Nothing", good, audit{entries: 3}},
		{"LostWrite", good[:2], audit{entries: 2, lost: 1}},
		{"NumberGivenTwice", append(good[:3:3], entry{3, "b", 1, 9}), audit{entries: 4, doubled: 1}},
		{"EntryWrittenTwice", append(good[:3:3], entry{4, "a", 1, 9}), audit{entries: 4, doubled: 1}},
		{"TokenFell", append(good[:3:3], entry{4, "b", 1, 6}), audit{entries: 4, unordered: 1}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{entries: row.entries}
			if got := l.check(map[string]int{"a": 2, "b": 1}); got != row.want {
				t.Errorf("audit %+v, want %+v", got, row.want)
			}
		})
	}
}

func TestBrokenLedgerIsAnError(t *testing.T) {
	t.Parallel()
	s := &stage{out: new(bytes.Buffer), stale: nil, written: map[string]int{"ada": 1}}
	if err := s.sum(); !errors.Is(err, ErrBroken) {
		t.Errorf("error %v for a ledger that lost a write, want ErrBroken", err)
	}
	s.ledger.entries = []entry{{1, "ada", 0, holdfast.Token(7)}}
	if err := s.sum(); !errors.Is(err, ErrBroken) {
		t.Errorf("error %v for an accepted stale write, want ErrBroken", err)
	}
}
