package zookeeper

import (
	"errors"
	"math"
	"testing"
	"time"
)

// An answer of a follower counts from the time when the follower asked the leader, which it does when a client
// connects. Requests that change nothing or fail prove nothing.
func TestOnlyLeaderProlongsSession(t *testing.T) {
	t.Parallel()
	opened := time.Now()
	sent := opened.Add(time.Second)
	for _, c := range []struct {
		leads bool
		r     *request
		want  time.Time
	}{
		{true, confirmRequest(nil), sent},
		{false, confirmRequest(nil), opened},
		{true, getChildren("/"), time.Time{}},
		{true, &request{op: opMulti, err: codeNoNode}, time.Time{}},
	} {
		s := &session{}
		s.noteAnswer(&link{leads: c.leads, opened: opened}, pendingRequest{request: c.r, sent: sent}, 1)
		if !s.base.Equal(c.want) {
			t.Errorf("leads %v, request %d, %v: the TTL counts from %v, want %v", c.leads, c.r.op, c.r.err, s.base, c.want)
		}
	}
}

// A read-only member (readonlymode.enabled) still answers.
func TestReadOnlyMemberIsNotMajority(t *testing.T) {
	t.Parallel()
	const text = "Zookeeper version: 3.8.0-1, built on 2022\nZxid: 0x100000004\nMode: read-only\nNode count: 5\n"
	if h, err := readHealth(text, nil); !errors.Is(err, errNoQuorum) || h.mode != "" {
		t.Errorf("readHealth() = %+v, %v, want %v", h, err, errNoQuorum)
	}
}

// Numbers are unique over all connections of the session: a member answers by number, even after the connection
// has ended.
func TestRequestNumbersAreUniqueInSession(t *testing.T) {
	s := &session{}
	s.xids.Store(math.MaxInt32 - 3)
	seen := make(map[int32]bool)
	for range 3 {
		l := &link{s: s}
		for range 3 {
			_, xid := l.formPacket(goodbyeRequest())
			if seen[xid] || xid < 0 {
				t.Errorf("number %d after %v", xid, seen)
			}
			seen[xid] = true
		}
	}
}

// The renewals of such a session would have no pause.
func TestSessionWithoutTimeoutIsRejected(t *testing.T) {
	t.Parallel()
	for _, granted := range []int32{0, -1} {
		for _, key := range []time.Duration{anyTTL, 10 * time.Second} {
			s := &session{key: key}
			if err := s.noteGrant(greeting{id: 1, timeout: granted}, 10_000); err == nil || s.id != 0 || s.ttl != 0 {
				t.Errorf("granted %d ms: %v, and the session's TTL is %v", granted, err, s.ttl)
			}
		}
	}
}
