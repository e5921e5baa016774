package differential

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// A key lapses once the clock is past its time, not when it reaches it: the twin
// counts so, and here the server's own expiry is watched, without any help.
func TestKeysLapseWhenTheTwinSaysSo(t *testing.T) {
	t.Parallel()
	server := connect(t)
	keys := KeysOf("lock:expiry")
	for i, key := range []string{keys.Lock, keys.Queue} {
		t.Run([]string{"lock", "queue"}[i], func(t *testing.T) {
			atTheLast := 0
			for range 20 {
				atTheLast += watchLapse(t, server, keys, key)
			}
			if atTheLast == 0 {
				t.Error("no look in the very millisecond of an expiry found the key still there")
			}
		})
	}
}

// watchLapse asks for everything while key lapses. It returns how often key was
// there in its last millisecond.
func watchLapse(t *testing.T, server *Server, keys Keys, key string) (atTheLast int) {
	t.Helper()
	now := fresh(t, server, keys)
	when := now/1000 + 4
	do(t, server, []string{"PEXPIREAT", key, strconv.FormatInt(when, 10)})
	before, err := server.State(keys)
	if err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; {
		c := Call{Script: "inspect"}
		o, err := server.Run(c, keys)
		if err != nil {
			t.Fatal(err)
		}
		if early := o.Before/1000 == when && o.After != before; early {
			return atTheLast // Redis 8 removes a key by itself as the clock reaches its time; a lease's drift covers it
		}
		if _, difference := Compare(c, before, o, hears); difference != "" {
			t.Fatalf("%d ms after its time: %s", o.Before/1000-when, difference)
		}
		if o.After == before && o.Before/1000 == when {
			atTheLast++
		}
		gone = o.After != before || o.Before/1000 > when // before may have been read too late
	}
	return atTheLast
}

// fresh leaves a lock that a.1 holds and b.1 waits for, and returns the server's
// clock.
func fresh(t *testing.T, server *Server, keys Keys) (now int64) {
	t.Helper()
	do(t, server, []string{"DEL", keys.Lock, keys.Fence, keys.Queue})
	for _, c := range []Call{
		{Script: "acquire", Owner: "a.1", TTL: 10_000, Clock: time.Now().UnixMicro()},
		{Script: "acquire", Owner: "b.1", TTL: 10_000, Stamp: 7},
	} {
		o, err := server.Run(c, keys)
		if err != nil {
			t.Fatal(err)
		}
		now = o.Until
	}
	return now
}

func do(t *testing.T, server *Server, cmds ...[]string) []any {
	t.Helper()
	replies, err := server.Do(cmds...)
	if err != nil {
		t.Fatal(err)
	}
	return replies
}

// What the twin does not know: locks of other libraries without an end, and
// servers that do not let their user publish.

func TestForeignLockWithoutEndIsReportedAsSuch(t *testing.T) {
	t.Parallel()
	server := connect(t)
	keys := KeysOf("lock:foreign")
	do(t, server, []string{"SET", keys.Lock, "theirs"})
	o, err := server.Run(Call{Script: "acquire", Owner: "a.1", TTL: 1000, Stamp: 7}, keys)
	if err != nil {
		t.Fatal(err)
	}
	if want := "[-1 theirs 1]"; fmt.Sprint(o.Reply) != want || o.After.Owner != "theirs" || o.After.Fence != 0 {
		t.Fatalf("reply %v, want %s; left %+v", o.Reply, want, o.After)
	}
}

func TestWithoutTheRightToPublishWaitersKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	server := connect(t, "b")
	keys := KeysOf("lock:mute")
	fresh(t, server, keys)
	do(t, server, []string{"ACL", "SETUSER", "default", "-publish"})
	o, err := server.Run(Call{Script: "release", Owner: "a.1", TTL: 10_000}, keys)
	if err != nil {
		t.Fatal(err)
	}
	do(t, server, []string{"ACL", "SETUSER", "default", "+publish"})
	wakes, err := server.Wakes()
	if err != nil {
		t.Fatal(err)
	}
	if o.Reply != int64(1) || o.After.Owner != "" || show(o.After.Queue) != "[b.1 7]" || len(wakes) != 0 {
		t.Fatalf("reply %v, wake-ups %v, left %s", o.Reply, wakes, Show(o.After, o.Until))
	}
}

// A waiter whose client does not listen is passed over for the next one.
func TestDeafWaitersArePassedOver(t *testing.T) {
	t.Parallel()
	server := connect(t, "b")
	keys := KeysOf("lock:deaf")
	fresh(t, server, keys)
	if _, err := server.Run(Call{Script: "acquire", Owner: "c.1", TTL: 1000, Stamp: 1}, keys); err != nil {
		t.Fatal(err)
	}
	o, err := server.Run(Call{Script: "release", Owner: "a.1", TTL: 10_000}, keys)
	if err != nil {
		t.Fatal(err)
	}
	wakes, err := server.Wakes()
	if err != nil {
		t.Fatal(err)
	}
	told := quorum.Wake{Owner: "b.1", Base: quorum.Base(o.After.Fence), Left: 1000}
	if want := [][2]string{{"holdfast:wake:b", told.String()}}; o.After.Owner != "b.1" || o.After.Queue != "" || !slices.Equal(wakes, want) {
		t.Fatalf("wake-ups %v, left %s", wakes, Show(o.After, o.Until))
	}
}
