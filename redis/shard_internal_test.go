package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/place"
)

// readTestMap makes the client read the map: a has all slots except the last, and the clock of a node is ahead.
func (c *cluster) readTestMap(ahead time.Duration) { c.readTestMapFrom(wire.Slots-1, ahead) }

// readTestMapFrom is readTestMap if b has the slots from first on.
func (c *cluster) readTestMapFrom(first int, ahead time.Duration) {
	now := time.Now()
	c.applyMap(slotMap{
		mapTime: mapTime{at: now, client: now.UnixMicro(), node: now.Add(ahead).UnixMicro()},
		spans:   []place.Span{{First: 0, Last: first - 1, ID: "a", Addr: "a:6379"}, {First: first, Last: wire.Slots - 1, ID: "b", Addr: "b:6379"}},
	})
}

// firstToken returns the first token of a counter that starts now.
func firstToken() int64 {
	now := time.Now().UnixMicro()
	floor, _ := quorum.Seed(now, now)
	return floor
}

func wantFloor(t *testing.T, c *cluster, want int64) {
	t.Helper()
	if got, err := c.leastToken(nil); got != want || err != nil {
		t.Errorf("minimum token = %d, %v, want %d", got, err, want)
	}
}

// halfQuarantine of the quarantine, with the default MaxTTL
var halfQuarantine = member.Quarantine(time.Minute) / 2

func TestTokensBeginAtClockOnceWithoutMoves(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
		clusterOf(d).readTestMap(0)
		first := firstToken()
		wantFloor(t, clusterOf(d), first)
		for range 10 {
			time.Sleep(halfQuarantine)
			clusterOf(d).readTestMap(0)
			wantFloor(t, clusterOf(d), first)
		}
	})
}

// The slot may come from a shard that has lost counters, and whose floor this client does not know.
func TestTokensBeginAtClockAfterMove(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
		for _, first := range []int{9, 8, 9} {
			time.Sleep(time.Second)
			clusterOf(d).readTestMapFrom(first, 0)
			wantFloor(t, clusterOf(d), firstToken())
		}
	})
}

// A slot may have moved to another shard, which lost counters, and have come back meanwhile.
func TestTokensBeginAtClockWithOldMap(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
		clusterOf(d).readTestMap(0)
		wantFloor(t, clusterOf(d), firstToken())
		time.Sleep(halfQuarantine + time.Millisecond)
		begun := firstToken()
		wantFloor(t, clusterOf(d), begun) // before the client looks again
		time.Sleep(halfQuarantine)
		wantFloor(t, clusterOf(d), begun) // once, as long as the map counts
		time.Sleep(time.Millisecond)
		begun = firstToken()
		wantFloor(t, clusterOf(d), begun)
		time.Sleep(time.Second)
		clusterOf(d).readTestMap(0)
		wantFloor(t, clusterOf(d), begun)
		time.Sleep(halfQuarantine + time.Millisecond)
		clusterOf(d).readTestMap(0)
		then := firstToken()
		time.Sleep(time.Millisecond)
		wantFloor(t, clusterOf(d), then+1000) // no grant was requested while the map was old
	})
}

func TestTokensBeginAtClockOnlyIfClocksAgree(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]time.Duration{
		0: 0, -time.Second: 0, 30 * time.Second: 30 * time.Second, -30 * time.Second: -30 * time.Second,
	} {
		withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
			clusterOf(d).readTestMap(ahead)
			wantFloor(t, clusterOf(d), firstToken()+want.Microseconds())
		})
	}
	withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
		clusterOf(d).readTestMap(61 * time.Second)
		if floor, err := clusterOf(d).leastToken(nil); !errors.Is(err, errClocks) {
			t.Errorf("minimum token = %d, %v", floor, err)
		}
		clusterOf(d).readTestMap(0)
		wantFloor(t, clusterOf(d), firstToken())
	})
	withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
		clusterOf(d).readTestMap(0)
		clusterOf(d).looked.Load().client -= time.Hour.Microseconds() // this machine's clock was set
		if floor, err := clusterOf(d).leastToken(nil); !errors.Is(err, errClockStep) {
			t.Errorf("minimum token = %d, %v", floor, err)
		}
	})
}

// The new shard of a slot may not know what the old one has granted.
func TestGrantInFoundSlotBeginsAtClock(t *testing.T) {
	t.Parallel()
	for _, below := range []int64{1, 0} {
		withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
			clusterOf(d).readTestMap(0)
			wantFloor(t, clusterOf(d), firstToken())
			time.Sleep(time.Second)
			atA, atB := recordScripts(a), recordScripts(b)
			got := make(chan driver.Grant, 1)
			failed := make(chan error, 1)
			go func() {
				g, err := d.engine.Acquire(t.Context(), driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
				got <- g
				failed <- err
			}()
			takeScripts(atA)
			a.Write(fmt.Appendf(nil, "-MOVED %d b:6379\r\n", wire.Slot("lock:k")))
			least := firstToken()
			if sent := takeScripts(atB); len(sent) != 1 || !strings.HasSuffix(sent[0], " "+format.Decimal(least)) {
				t.Errorf("requested by %q, want at least %d", sent, least)
			}
			b.Write(fmt.Appendf(nil, ":%d\r\n", least-below))
			if below > 0 { // a server that ignores the lowest token
				takeScripts(atB)
				b.Write([]byte(":1\r\n")) // the release
			}
			g, err := <-got, <-failed
			if below > 0 && !errors.Is(err, driver.ErrUnavailable) || below == 0 && (err != nil || g.Token != least) {
				t.Errorf("granted %d below: token %d, want %d: %v", below, g.Token, least, err)
			}
		})
	}
}

// The client could not use a grant, and with each attempt it would keep the lock from all others for a TTL.
func TestClientWithoutFloorDoesNotAcquire(t *testing.T) {
	t.Parallel()
	grant := driver.Grant{Key: "k", Owner: driver.MarkAdoptable(quorum.NewOwner(quorum.NewClient(), 1, "")), TTL: 10 * time.Second, Token: 7}
	for what, ask := range map[string]func(context.Context, *Driver) error{
		"a lock": func(ctx context.Context, d *Driver) error {
			_, err := d.engine.Acquire(ctx, driver.Request{Key: "k", TTL: grant.TTL})
			return err
		},
		"another's lease": func(ctx context.Context, d *Driver) error {
			_, err := d.engine.Adopt(ctx, grant)
			return err
		},
	} {
		withShards(t, func(t *testing.T, d *Driver, a, _ net.Conn) {
			clusterOf(d).readTestMap(61 * time.Second)
			atA := recordScripts(a)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // no supervisor watches the connections here
			defer cancel()
			if err := ask(ctx, d); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "differ by more than a minute") {
				t.Errorf("%s: %v", what, err)
			}
			if sent := slices.DeleteFunc(takeScripts(atA), func(s string) bool { return s == "SUBSCRIBE" }); len(sent) > 0 {
				t.Errorf("for %s the shard received %q", what, sent)
			}
		})
	}
}

// The node's clock has advanced since it was read, by up to the time that the answer took.
func TestLateAnswerDoesNotLowerTokens(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, c := range []struct{ took, ahead, want time.Duration }{
		{0, 0, 0},
		{4 * time.Second, -4 * time.Second, 0},
		{4 * time.Second, -2 * time.Second, 0},
		{4 * time.Second, -30 * time.Second, -26 * time.Second},
		{4 * time.Second, 3 * time.Second, 3 * time.Second},
	} {
		g := newMapTime(at.Add(-c.took), at, at.Add(c.ahead).UnixMicro())
		if got := time.Duration(g.node-g.client) * time.Microsecond; got != c.want {
			t.Errorf("an answer that took %v, with the clock %v ahead, counts as %v ahead, want %v", c.took, c.ahead, got, c.want)
		}
	}
}

// Otherwise tokens would begin at the clock again at each read of the map, and every grant would need a commit.
func TestSlotMapStaysFreshBetweenChecks(t *testing.T) {
	t.Parallel()
	for _, most := range []time.Duration{10 * time.Millisecond, time.Second, 5 * time.Second, 8 * time.Second, 10 * time.Second, time.Minute, time.Hour} {
		d, err := prepareDriver([]Node{{Addr: "a:6379"}}, &Options{Cluster: true, MaxTTL: most})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		clusterOf(d).looked.Store(&mapTime{at: now})
		if clusterOf(d).isOutdated(now.Add(2 * clusterOf(d).mapInterval())) {
			t.Errorf("with MaxTTL %v the map is outdated, and it is read every %v", most, clusterOf(d).mapInterval())
		}
	}
}
