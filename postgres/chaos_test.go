package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/postgres"
)

var chaosTime = flag.Duration("chaos", 8*time.Second, "how long TestChaos lasts")

// heldInterval records one lease: from records the grant, to the moment when the holder learned of its end.
type heldInterval struct {
	from, to time.Time
	token    holdfast.Token
}

// chaos holds clients that compete for one lock, and the leases that they were granted.
type chaos struct {
	*rig
	drivers   []driver.Driver
	mu        sync.Mutex // guards the fields below
	leases    []heldInterval
	committed int
	refused   int
}

// TestChaos has clients increment a number under a lock, each in a transaction that FenceTx checks. Meanwhile
// it cuts, mutes and stops connections, drops replies, and crashes the server.
func TestChaos(t *testing.T) {
	t.Parallel()
	s := startAlone(t, "max_connections=100")
	c := &chaos{rig: newRigOn(t, s)}
	c.execSQL("CREATE TABLE holdfast.account AS SELECT 0 AS balance")
	ctx, cancel := context.WithTimeout(t.Context(), *chaosTime)
	defer cancel()
	var all sync.WaitGroup
	for range 5 {
		d := c.newDriver()
		c.drivers = append(c.drivers, d)
		client := c.Client(d)
		all.Go(func() {
			for ctx.Err() == nil {
				c.takeTurn(ctx, d, client)
			}
		})
	}
	c.causeFaults(ctx, s)
	all.Wait()
	c.checkBalance(t)
}

// takeTurn acquires the lock and increments the number.
func (c *chaos) takeTurn(ctx context.Context, d *postgres.Driver, client *holdfast.Client) {
	brood := rand.IntN(20) == 0                                                                 // keep working after the loss
	l, err := client.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: shortTTL, NoRenew: brood}) // short: leases end in the trouble
	if err != nil {
		return
	}
	h := heldInterval{from: time.Now(), token: l.Token()}
	if brood {
		<-l.Context().Done()
	}
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := d.FenceTx(ctx, tx, l); err != nil {
			return err
		}
		var balance int
		if err := tx.QueryRow(ctx, c.in("SELECT balance FROM holdfast.account")).Scan(&balance); err != nil {
			return err
		}
		time.Sleep(rand.N(5 * time.Millisecond)) // so that holders overlap
		_, err := tx.Exec(ctx, c.in("UPDATE holdfast.account SET balance = $1"), balance+1)
		return err
	})
	h.to = time.Now()
	if deadline := l.Deadline(); deadline.Before(h.to) {
		h.to = deadline // the holder worked on after the lease had ended
	}
	l.Release(context.WithoutCancel(ctx))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases = append(c.leases, h)
	switch {
	case err == nil:
		c.committed++
	case errors.Is(err, holdfast.ErrLost):
		c.refused++
	}
}

// causeFaults causes faults until ctx ends.
func (c *chaos) causeFaults(ctx context.Context, s *pgproc.Server) {
	for n := 0; ctx.Err() == nil; n++ {
		time.Sleep(rand.N(200 * time.Millisecond)) // some callers get the lock between two faults
		switch rand.IntN(5) {
		case 0:
			c.EachLink(func(_ int, p *fixture.Link) { p.Lose, p.Mute = rand.IntN(3), false })
		case 1:
			c.EachLink(func(_ int, p *fixture.Link) { p.Lose, p.Mute = rand.IntN(2), true })
		case 2:
			for _, d := range c.drivers {
				if rand.IntN(3) == 0 {
					c.linkOf(d).Cut()
				}
			}
		case 3:
			c.EachLink(func(_ int, p *fixture.Link) { p.Hole = rand.IntN(5) == 0 })
			time.Sleep(rand.N(2 * shortTTL)) // long enough for some leases to end
			c.EachLink(func(_ int, p *fixture.Link) { p.Hole = false })
		case 4:
			if n%4 != 0 {
				continue
			}
			s.Kill()
			if err := s.Restart(context.WithoutCancel(ctx)); err != nil {
				c.Error(err)
				return
			}
		}
	}
	c.EachLink(func(_ int, p *fixture.Link) { p.Lose, p.Mute, p.Hole = 0, false, false })
}

func (c *chaos) checkBalance(t *testing.T) {
	c.pool.Reset() // the server may have crashed since each connection was last used
	balance := c.countRows("SELECT balance FROM holdfast.account")
	t.Logf("%d leases, %d commits, %d refused; balance %d", len(c.leases), c.committed, c.refused, balance)
	if balance < c.committed { // a commit without an answer may have succeeded
		t.Errorf("%d updates were lost", c.committed-balance)
	}
	if c.committed == 0 {
		t.Error("nothing was committed")
	}
	slices.SortFunc(c.leases, func(a, b heldInterval) int { return cmp.Compare(a.token, b.token) })
	for i, h := range c.leases[1:] {
		last := c.leases[i]
		if h.token == last.token {
			t.Errorf("token %d was granted twice", h.token)
		}
		if h.from.Before(last.to) {
			t.Errorf("the holder of %d trusted its lease for %v beside the holder of %d", last.token, last.to.Sub(h.from), h.token)
		}
	}
}
