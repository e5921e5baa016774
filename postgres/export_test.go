package postgres

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/jackc/pgx/v5"
)

// AcquireOnce sends the acquire statement for owner and reports whether owner has the lock afterwards.
func (d *Driver) AcquireOnce(ctx context.Context, key, owner string) (bool, error) {
	a, err := queryOne(ctx, d, readAnswer, d.schema.acquire, key, owner,
		driverkit.ToMicros(time.Minute), "{}", true, nil, driverkit.ToMicros(grace), driverkit.ToMicros(place))
	return a.Token != nil, err
}

// IsExcused reports whether the end of ctx shows nothing about the server. caller is the context of the caller.
func IsExcused(ctx, caller context.Context) bool {
	return isExcused(context.WithValue(ctx, callerKey{}, caller))
}

// AnyVersion makes d accept the tables of any version.
func (d *Driver) AnyVersion() {
	d.checked.Store(true)
	d.waitConns.max = 0 // older versions have no turnstile
}

// TLSWeakness returns the doctor's finding about conn, which a client opened for url.
func TLSWeakness(url string, conn net.Conn) string {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return err.Error()
	}
	return tlsWeakness(cfg, conn)
}

// MarkGone releases the lock of owner and marks owner as gone, so that a late statement takes nothing.
func (d *Driver) MarkGone(ctx context.Context, tx pgx.Tx, key, owner string) error {
	_, err := tx.Exec(ctx, d.schema.release, key, owner, 0, true)
	return err
}

// LockedTable returns the table whose row LockRow would lock for query, and the lexemes that the server sees.
func LockedTable(query string) (table string, seen []string, err error) {
	all, _ := splitLexemes(query)
	for _, l := range all {
		seen = append(seen, l.text)
	}
	table, err = tableOf(query)
	return table, seen, err
}

// HandlePayload handles a notification with this payload.
func (d *Driver) HandlePayload(payload string) { d.handlePayload(payload) }

// OpenWaitConn opens a connection for waits at the turnstile, and closes it.
func (d *Driver) OpenWaitConn(ctx context.Context) error {
	conn, err := d.openWaitConn(ctx)
	if err == nil {
		err = conn.Close(ctx)
	}
	return err
}

// NoteProcess records the server process of the last used connection of the pool.
func (d *Driver) NoteProcess(pid uint32) { d.backend.Store(pid) }

// ReceivesOwnNotification reports whether d takes notifications on channel, by default its own, for its own.
// listening is called before d asks.
func (d *Driver) ReceivesOwnNotification(ctx context.Context, channel string, listening func()) (bool, error) {
	if channel == "" {
		channel = d.owners.Client
	}
	var in inbox
	conn, err := d.dialConn(ctx, in.add)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return false, err
	}
	listening()
	ctx, cancel := context.WithTimeout(ctx, pace.NotifyTime())
	defer cancel()
	return d.receivesOwnNotification(ctx, conn, &in)
}

// WaitForWake returns a channel that receives when a notification wakes the waiter owner.
func (d *Driver) WaitForWake(owner string) <-chan struct{} {
	wake := make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.waiting)
	d.waiting[owner] = wake
	return wake
}

// CloseIdleWaitConns closes the idle connections for turnstiles.
func (d *Driver) CloseIdleWaitConns() { d.waitConns.closeIdle(0) }

// WaitConns returns the number of open connections for turnstiles.
func (d *Driver) WaitConns() int {
	d.waitConns.mu.Lock()
	defer d.waitConns.mu.Unlock()
	return d.waitConns.open
}

// RenewalConns returns the number of open connections for renewals.
func (d *Driver) RenewalConns() int {
	d.reserve.turn <- struct{}{}
	defer d.reserve.passTurn()
	if d.reserve.conn == nil {
		return 0
	}
	return 1
}

// AbandonAfterGrant makes a claim wait at the turnstile of key and calls open, which lets the claim pass. It
// cancels the claim after the server has answered and before the claim has read the answer.
func (d *Driver) AbandonAfterGrant(key string, open func()) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	c := d.newClaim(driver.Request{Key: key, TTL: time.Minute})
	defer c.leave()
	if !c.startVisit() {
		return errNoTurnstile
	}
	v := c.visit
	await := func(sent bool) {
		for there := !sent; there != sent; time.Sleep(time.Millisecond) {
			v.mu.Lock()
			there = v.conn != nil
			v.mu.Unlock()
		}
	}
	await(true)
	d.mu.Lock() // stops the visit where it notes the crowd
	open()
	await(false)
	c.abandon()
	time.Sleep(2 * pace.FinishTime())
	d.mu.Unlock()
	return nil
}

// NoteCrowd makes the next claim for key go to the turnstile at once.
func (d *Driver) NoteCrowd(key string) { d.seesOtherWaiters(key, true) }

// NoteDoubt records that a statement of owner may be executed late. DoubtedOwners returns the number of such
// owners.
func (d *Driver) NoteDoubt(owner string) { d.noteDoubt(owner, true) }

func (d *Driver) DoubtedOwners() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.doubted)
}

// EndWaitForConnection ends a wait at the turnstile while its connection is being opened. It reports whether
// the next wait may open one.
func (d *Driver) EndWaitForConnection() (ready bool, err error) {
	if err := d.calls.Enter(); err != nil {
		return false, err
	}
	defer d.calls.Leave()
	c := d.newClaim(driver.Request{Key: "k", TTL: time.Hour})
	defer c.leave()
	if !c.startVisit() {
		return false, errNoTurnstile
	}
	c.visit.end()
	<-c.visit.done
	return d.waitConns.isReady(), nil
}

// TryUnderNewName waits until the turnstile of key has granted the lock to a claim and calls taken. Then the
// claim asks again under a new owner name, before it has read that grant.
func (d *Driver) TryUnderNewName(ctx context.Context, key string, taken func(token int64)) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	c := d.newClaim(driver.Request{Key: key, TTL: time.Minute, WillRenew: true})
	defer c.leave()
	if !c.startVisit() {
		return driver.Grant{}, errNoTurnstile
	}
	<-c.visit.done
	if len(c.visit.answer.rows) == 0 || c.visit.answer.rows[0].Token == nil {
		return driver.Grant{}, errors.New("it has not come through with the lock")
	}
	taken(*c.visit.answer.rows[0].Token)
	c.rename()
	for {
		g, err := c.tryOnce(ctx)
		if !errors.Is(err, driver.ErrHeld) {
			return c.noteResult(g, err)
		}
		time.Sleep(time.Millisecond) // the lock is kept for the turnstile until its session leaves in the background
	}
}
