package sqlite_test

import (
	"crypto/rand"
	"database/sql"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// faultyBells are bells that lose messages, deliver them twice, or delay them by up to two seconds.
type faultyBells struct {
	*bells

	mu  sync.Mutex // guards the fields below
	rnd *mathrand.Rand
}

func (b *faultyBells) numberOf(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rnd.IntN(n)
}

func (b *faultyBells) open(file, id string, hear func(string)) (sqlite.Socket, error) {
	return b.bells.open(file, id, func(message string) {
		switch b.numberOf(5) {
		case 0:
		case 1:
			hear(message)
			hear(message)
		case 2:
			time.AfterFunc(time.Duration(b.numberOf(2000))*time.Millisecond, func() { hear(message) })
		default:
			hear(message)
		}
	})
}

// ringFalsely rings for random waiters until stop is closed.
func (b *faultyBells) ringFalsely(t *testing.T, db *sql.DB, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(b.numberOf(20)) * time.Millisecond):
		}
		var owner string
		err := db.QueryRowContext(t.Context(), "SELECT owner FROM holdfast_ticket ORDER BY random() LIMIT 1").Scan(&owner)
		if err != nil {
			continue // no waiter, or the file is busy
		}
		client, _, _ := strings.Cut(owner, ".")
		oneBell{b.bells, ""}.Ring(client, "turn "+owner)
	}
}

// Several waiters queue up. One of them is a suspended process with a ticket, which takes the lock when its
// bell rings. Each seed is a subtest.
func TestFaultyWakeUpsKeepOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "locks.db")
			synctest.Test(t, func(t *testing.T) { keepOrder(t, path, seed) })
		})
	}
}

func keepOrder(t *testing.T, path string, seed uint64) {
	const waiters, stopped = 8, 3
	bells := &faultyBells{bells: newBells(), rnd: mathrand.New(mathrand.NewPCG(seed, 0))}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() *sqlite.Driver {
		d, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, bells.open)
		must(err)
		return d
	}
	holder := open()
	defer holder.Close()
	g, err := holder.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Hour})
	must(err)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
	must(err)
	defer db.Close()
	var mu sync.Mutex // guards the variables below
	var order []int
	tokens := []int64{g.Token}
	var all sync.WaitGroup
	for i := range waiters {
		if i == stopped {
			owner := rand.Text() + ".1"
			_, err := bells.bells.open("", strings.TrimSuffix(owner, ".1"), func(string) {})
			must(err)
			until := time.Now().Add(time.Hour).UnixMicro()
			_, err = db.ExecContext(t.Context(), "INSERT INTO holdfast_ticket SELECT 'k', ?, MAX(place) + 1, '{}', ? FROM holdfast_ticket", owner, until)
			must(err)
			_, err = db.ExecContext(t.Context(), "UPDATE holdfast_lock SET stamp = stamp + 1, places = places + 1")
			must(err)
		}
		d := open()
		defer d.Close()
		all.Go(func() {
			g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Hour})
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			mu.Lock()
			order, tokens = append(order, i), append(tokens, g.Token)
			mu.Unlock()
			time.Sleep(time.Duration(bells.numberOf(40)) * time.Millisecond)
			if err := d.Release(t.Context(), g, 0); err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
		time.Sleep(time.Second)
	}
	stop := make(chan struct{})
	var falsely sync.WaitGroup
	falsely.Go(func() { bells.ringFalsely(t, db, stop) })
	time.Sleep(time.Second)
	must(holder.Release(t.Context(), g, 0))
	all.Wait()
	close(stop)
	falsely.Wait()
	if !slices.IsSorted(order) || len(order) != waiters {
		t.Errorf("served in the order %v, want the order of arrival", order)
	}
	if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 1+waiters {
		t.Errorf("the tokens %v do not rise", tokens)
	}
	if left, err := leftoverRows(t, db); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
}

// The test uses the driver without a client, so nothing renews, and only the socket can deliver the message.
func TestForceAlertsHolderOverSocket(t *testing.T) {
	t.Parallel()
	url := "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
	holder, other := openDriver(t, url, nil), openDriver(t, url, nil)
	alerter, ok := any(holder).(driver.Alerter)
	if !ok {
		t.Skip("only Linux has what a bell needs")
	}
	heard := make(chan [2]string, 1)
	alerter.Alert(func(owner, why string) { heard <- [2]string{owner, why} })
	g := fixture.New(t).AcquireGrant(holder, "k", fixture.LongTTL)
	if forced, err := other.Force(boundedContext(t), "k", g.Token, "moved to another host"); err != nil || !forced {
		t.Fatalf("Force() = %v, %v", forced, err)
	}
	select {
	case got := <-heard:
		if got != [2]string{g.Owner, "moved to another host"} {
			t.Errorf("received %q, want the owner and the reason", got)
		}
	case <-boundedContext(t).Done():
		t.Error("the holder was not notified of the force release")
	}
}
