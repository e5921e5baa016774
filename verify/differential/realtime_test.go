package differential

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A key expires once the clock is past its time, not when the clock reaches it. The twin has this rule, and the
// test observes the server's expiry.
func TestKeyExpiresOnlyAfterItsTime(t *testing.T) {
	t.Parallel()
	server := connectServer(t)
	keys := KeysOf("lock:expiry")
	atTheLast := 0
	for range 20 {
		atTheLast += watchLapse(t, server, keys, keys.Lock)
	}
	if atTheLast == 0 {
		t.Error("no read in the millisecond of an expiry still found the key")
	}
}

// watchLapse reads the state while key expires. It returns the number of reads that saw key in its last
// millisecond.
func watchLapse(t *testing.T, server *Server, keys Keys, key string) (atTheLast int) {
	t.Helper()
	now := putQueuedLock(t, server, keys)
	when := now/1000 + 4
	runCommands(t, server, []string{"PEXPIREAT", key, strconv.FormatInt(when, 10)})
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
			return atTheLast // Redis 8 removes a key when the clock reaches its time; a lease's drift covers that
		}
		if _, difference := Compare(c, before, o, hears); difference != "" {
			t.Fatalf("%d ms after its expiry: %s", o.Before/1000-when, difference)
		}
		if o.After == before && o.Before/1000 == when {
			atTheLast++
		}
		gone = o.After != before || o.Before/1000 > when // before may have been read too late
	}
	return atTheLast
}

// putQueuedLock creates a lock that a.1 holds and b.1 waits for, and returns the server's clock.
func putQueuedLock(t *testing.T, server *Server, keys Keys) (now int64) {
	t.Helper()
	runCommands(t, server, []string{"DEL", keys.Lock, keys.Fence, keys.Queue})
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

func runCommands(t *testing.T, server *Server, cmds ...[]string) []any {
	t.Helper()
	replies, err := server.Do(cmds...)
	if err != nil {
		t.Fatal(err)
	}
	return replies
}

// Cases that the twin lacks: locks of other libraries without expiry, and servers that do not let their user
// publish.

func TestForeignLockWithoutTTLIsReported(t *testing.T) {
	t.Parallel()
	server := connectServer(t)
	keys := KeysOf("lock:foreign")
	runCommands(t, server, []string{"SET", keys.Lock, "theirs"})
	o, err := server.Run(Call{Script: "acquire", Owner: "a.1", TTL: 1000, Stamp: 7}, keys)
	if err != nil {
		t.Fatal(err)
	}
	if want := "[-1 theirs 1]"; fmt.Sprint(o.Reply) != want || o.After.Owner != "theirs" || o.After.Fence != 0 {
		t.Fatalf("reply %v, want %s; left %+v", o.Reply, want, o.After)
	}
}

func TestMissingPublishRightKeepsPlaces(t *testing.T) {
	t.Parallel()
	server := connectServer(t, "b")
	keys := KeysOf("lock:mute")
	putQueuedLock(t, server, keys)
	runCommands(t, server, []string{"ACL", "SETUSER", "default", "-publish"})
	o, err := server.Run(Call{Script: "release", Owner: "a.1", TTL: 10_000}, keys)
	if err != nil {
		t.Fatal(err)
	}
	runCommands(t, server, []string{"ACL", "SETUSER", "default", "+publish"})
	wakes, err := server.Wakes()
	if err != nil {
		t.Fatal(err)
	}
	if head, _ := o.After.Queue.Head(); o.Reply != int64(1) || o.After.Owner != "" || head != "b.1" || len(wakes) != 0 {
		t.Fatalf("reply %v, wake-ups %v, left %s", o.Reply, wakes, Show(o.After, o.Until))
	}
}

// A waiter whose client is not subscribed is skipped.
func TestWaitersWithoutSubscriptionAreSkipped(t *testing.T) {
	t.Parallel()
	server := connectServer(t, "b")
	keys := KeysOf("lock:deaf")
	putQueuedLock(t, server, keys)
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
	message := quorum.Wake{Owner: "b.1", Base: quorum.FirstOfBlock(o.After.Fence), Left: 1000}
	if want := [][2]string{{"holdfast:wake:b", message.String()}}; o.After.Owner != "b.1" || o.After.Queue != "" || !slices.Equal(wakes, want) {
		t.Fatalf("wake-ups %v, left %s", wakes, Show(o.After, o.Until))
	}
}

// One script checks at most a hundred dead waiters, and still finds a living one.
func TestExpiredPlacesAreSkipped(t *testing.T) {
	t.Parallel()
	server := connectServer(t, "z")
	keys := KeysOf("lock:dead")
	const dead = 100_000
	for name, until := range map[string]int64{"alive until lately": 9_000_000_000_000, "lapsed": 1_000_000_000_000} {
		t.Run(name, func(t *testing.T) {
			runCommands(t, server, []string{"FLUSHALL"})
			if _, err := server.Run(Call{Script: "acquire", Owner: "a.1", TTL: 60_000, Clock: time.Now().UnixMicro()}, keys); err != nil {
				t.Fatal(err)
			}
			for first := 0; first < dead; first += 1000 {
				add := []string{"ZADD", keys.Queue}
				for i := range 1000 {
					owner := fmt.Sprintf("d.%d", first+i)
					add = append(add, fmt.Sprint(1+first+i), owner, fmt.Sprint(-until), "!"+owner)
				}
				runCommands(t, server, add)
			}
			args := func(list ...string) []string { return append([]string{"EVALSHA"}, list...) }
			begun := time.Now()
			got := runCommands(t, server, args(wire.Acquire.SHA, "3", keys.Lock, keys.Fence, keys.Queue, "z.1", "10000", "0", "1000000"))[0]
			asked := time.Since(begun)
			left, _ := got.([]any)
			if want := map[string]int64{"lapsed": 1, "alive until lately": dead + 1}[name]; len(left) != 3 || left[2] != want {
				t.Errorf("answer = %v, want %d waiters", got, want)
			}
			runCommands(t, server, []string{"ZADD", keys.Queue, "-9000000000001", "!z.1"}) // z.1 was the last to ask
			begun = time.Now()
			runCommands(t, server, args(wire.Release.SHA, "3", keys.Lock, keys.Fence, keys.Queue, "a.1"))
			t.Logf("a request to wait took %v, a release %v", asked, time.Since(begun))
			if owner := fmt.Sprint(runCommands(t, server, []string{"GET", keys.Lock})[0]); !strings.HasPrefix(owner, "z.1 ") {
				t.Errorf("the lock belongs to %q", owner)
			}
			if n := runCommands(t, server, []string{"ZCARD", keys.Queue})[0]; n.(int64) < 2*(dead-300) {
				t.Errorf("%d members remain: one script examined too many", n)
			}
		})
	}
}
