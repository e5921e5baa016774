package redisfence_test

import (
	"encoding/binary"
	"errors"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// For any sequence of writes, the script on a real server and the Guard in Go accept and reject the same ones.
func FuzzRedisDecidesAsGuardDoes(f *testing.F) {
	write := func(token int64, owner byte) []byte {
		return append(binary.BigEndian.AppendUint64(nil, uint64(token)), owner)
	}
	row := func(writes ...[]byte) (all []byte) {
		for _, w := range writes {
			all = append(all, w...)
		}
		return all
	}
	f.Add(row(write(7, 'a'), write(8, 'b'), write(7, 'a')))
	f.Add(row(write(99, 'a'), write(100, 'b'), write(99, 'a'), write(100, 'a')))
	f.Add(row(write(1<<53, 'a'), write(1<<53+1, 'b'), write(1<<53, 'a'), write(1<<63-1, 'c'), write(1<<63-2, 'd')))
	f.Add(row(write(0, 'a'), write(-1, 'a'), write(1, 0), write(1, 255)))
	store := newPlainStore(redistest.Start(f, nil))
	round := 0
	f.Fuzz(func(t *testing.T, writes []byte) {
		var guard fence.Guard
		round++
		key := "k" + strconv.Itoa(round)
		for ; len(writes) >= 9; writes = writes[9:] {
			token, owner := holdfast.Token(binary.BigEndian.Uint64(writes)), string(writes[8:9])
			want := guard.Claim(key, token, owner)
			got := store.Claim(t.Context(), key, token, owner)
			if (got == nil) != (want == nil) || got != nil && !errors.Is(got, fence.ErrStale) {
				t.Fatalf("token %d of %q: %v, want %v", token, owner, got, want)
			}
		}
		token, owner, err := store.Highest(t.Context(), key)
		if wantToken, wantOwner := guard.Highest(key); err != nil || token != wantToken || owner != wantOwner {
			t.Errorf("highest is %d of %q, %v; want %d of %q", token, owner, err, wantToken, wantOwner)
		}
		if err := store.Forget(t.Context(), key); err != nil {
			t.Error(err)
		}
	})
}
