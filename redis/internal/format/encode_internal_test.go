package format

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A missing argument has a meaning: a renewal without a token restores no lock, and only requests with a
// minimum token send one.
func TestEncoderSendsNeededArguments(t *testing.T) {
	t.Parallel()
	const ttl = int64(10 * time.Second)
	lock := Plain.Lock("lock:", "k", false)
	handOver := quorum.HandOverTime(ttl)
	adopts := quorum.Ask{Kind: quorum.AskAdopt, Clock: 5, From: "f", Noted: int64(6 * time.Second)}
	adoptsAbove := adopts
	adoptsAbove.Least = 9
	for name, row := range map[string]struct {
		ask    quorum.Ask
		script *wire.Script
		want   []string
	}{
		"acquire":               {quorum.Ask{Kind: quorum.AskAcquire, Clock: 5}, wire.Acquire, []string{"o", "10000", "5"}},
		"acquire, queues":       {quorum.Ask{Kind: quorum.AskAcquire, Clock: 5, Stamp: 7}, wire.Acquire, []string{"o", "10000", "5", "7"}},
		"acquire, least":        {quorum.Ask{Kind: quorum.AskAcquire, Clock: 5, Least: 9}, wire.Acquire, []string{"o", "10000", "5", "", "9"}},
		"adopt":                 {adopts, wire.Adopt, []string{"f", "o", "10000", "5", "6000"}},
		"adopt, least":          {adoptsAbove, wire.Adopt, []string{"f", "o", "10000", "5", "6000", "9"}},
		"commit":                {quorum.Ask{Kind: quorum.AskCommit, Token: 33}, wire.Commit, []string{"o", "33"}},
		"renew":                 {quorum.Ask{Kind: quorum.AskRenew, Token: 33}, wire.Renew, []string{"o", "10000"}},
		"renew, anew":           {quorum.Ask{Kind: quorum.AskRenew, Token: 33, Restore: true}, wire.Renew, []string{"o", "10000", "33"}},
		"release":               {quorum.Ask{Kind: quorum.AskRelease, HandOver: handOver}, wire.Release, []string{"o"}},
		"release, to nobody":    {quorum.Ask{Kind: quorum.AskRelease}, wire.Release, []string{"o", "", "", "0"}},
		"release, MinHold":      {quorum.Ask{Kind: quorum.AskRelease, HandOver: handOver, MinHold: ttl}, wire.Release, []string{"o", "", "", "1000", "10000"}},
		"release, least":        {quorum.Ask{Kind: quorum.AskRelease, HandOver: handOver, Least: 9}, wire.Release, []string{"o", "9"}},
		"give-back":             {quorum.Ask{Kind: quorum.AskGiveBack, HandOver: handOver, Stamp: 7}, wire.Release, []string{"o", "", "7"}},
		"give-back, for a time": {quorum.Ask{Kind: quorum.AskGiveBack, HandOver: handOver / 2, Stamp: 7}, wire.Release, []string{"o", "", "7", "500"}},
	} {
		row.ask.Owner, row.ask.TTL = "o", ttl
		for _, p := range []Proof{{}, {Set: "holdfast:set", Marker: "m"}} {
			got := Plain.Encoder(p).Encode(nil, &engine.Request{Ask: row.ask, Lock: &lock})
			want := resp.AppendCommand(nil, p.Call(row.script, lock, row.want...)...)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

// A lease survives while the keys of its hash slot are on two shards, because its renewal names only the key
// of the lock.
func TestRenewalInClusterSendsOnlyLockKey(t *testing.T) {
	t.Parallel()
	lock := Plain.Lock("lock:", "k", true)
	ask := quorum.Ask{Kind: quorum.AskRenew, Owner: "o", TTL: int64(10 * time.Second), Token: 33}
	got := Plain.Encoder(Proof{}).Encode(nil, &engine.Request{Ask: ask, Lock: &lock})
	if want := resp.AppendCommand(nil, "EVALSHA", wire.Renew.SHA, "1", "lock:k", "o", "10000"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	ask.Restore = true // the notes are in another key
	got = Plain.Encoder(Proof{}).Encode(nil, &engine.Request{Ask: ask, Lock: &lock})
	if want := resp.AppendCommand(nil, Proof{}.Call(wire.Renew, lock, "o", "10000", "33")...); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Locks of a server share its 256 counters of tokens, and locks of a cluster the counter of their slot.
// Redisson has a counter for each lock.
func TestLocksShareCounterOfNode(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b", "{x}y"} {
		if got := Plain.Lock("lock:", name, false); got.Fence != wire.ServerFence(got.Key) || got.Counter != wire.ServerCounter(got.Key) {
			t.Errorf("%s on a server: %q", name, got.Fence)
		}
		if got := Plain.Lock("lock:", name, true); got.Fence != wire.SlotFence(got.Key) || wire.Slot(got.Fence) != wire.Slot(got.Key) || got.Counter >= 0 {
			t.Errorf("%s in a cluster: %q", name, got.Fence)
		}
		if got := Redisson.Lock("", name, false); got.Fence != wire.RedissonFence(name) || got.Counter >= 0 {
			t.Errorf("Redisson format of %s = %q", name, got.Fence)
		}
	}
}
