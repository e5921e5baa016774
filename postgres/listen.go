package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// watchEvery is the interval at which an idle driver sends a statement.
	watchEvery = 5 * time.Second
	// lookEvery is the interval between pings of an idle listening connection.
	lookEvery = 5 * time.Second
)

// Reasons why a driver never listens.
var (
	errPooled = errors.New("LISTEN does not work through this connection pooler, so waiters poll; it does on a direct connection, or in session mode")
	errShared = errors.New("several connections share one session of the server, so waiters poll, and no statement is prepared; " +
		"use a server that gives each connection a session of its own")
)

// currentChannel returns the channel on which the driver listens, nil if it does not, and a channel that is
// closed when that changes.
func (d *Driver) currentChannel() (channel *string, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel, d.tuned
}

// setChannel sets the channel and makes all waiters ask again, which gives the server the new channel.
func (d *Driver) setChannel(channel *string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.channel = channel
	close(d.tuned)
	d.tuned = make(chan struct{})
}

// startListening starts the goroutine that listens until Close, once. The caller is inside a call.
func (d *Driver) startListening() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listens {
		return
	}
	d.listens = true
	d.calls.Go(func() {
		for {
			err := d.listenOnce()
			if errors.Is(err, errPooled) || errors.Is(err, errShared) || !driverkit.Sleep(d.calls.Alive, time.Second) {
				return
			}
		}
	})
}

// listenOnce opens a connection and listens on it until it ends.
func (d *Driver) listenOnce() error {
	var in inbox
	conn, err := d.dialConn(d.calls.Alive, in.add)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
		defer cancel()
		conn.Close(ctx)
	}()
	link, hangUp := context.WithCancel(d.calls.Alive)
	defer hangUp()
	d.mu.Lock()
	d.hangUp = hangUp
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(link, pace.NotifyTime())
	defer cancel()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{d.owners.Client}.Sanitize(), pgx.QueryExecModeExec); err != nil {
		return err
	}
	if err := d.probeChannel(ctx, conn, &in); err != nil {
		return err
	}
	d.setChannel(&d.owners.Client)
	defer d.setChannel(nil)
	d.calls.Go(d.checkHeldLocks)
	for {
		n, err := d.nextPayload(link, conn, &in)
		if err != nil {
			return err
		}
		d.handlePayload(n)
	}
}

// handlePayload handles a notification: it wakes a waiter, or raises the alert for a lock that was
// force-released. Every user of the database can send one, so the payload is only a hint, and its text is
// untrusted.
func (d *Driver) handlePayload(payload string) {
	d.mu.Lock()
	if wake := d.waiting[payload]; wake != nil {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	alert := d.alert
	d.mu.Unlock()
	if owner, why, ok := strings.Cut(payload, forcedMark); ok && alert != nil {
		alert(owner, why)
	}
}

// forgetHold notes that the driver no longer holds the lock of owner.
func (d *Driver) forgetHold(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, owner)
}

// checkHeldLocks checks once, for each lock that the driver holds, whether it was force-released while the driver
// did not listen.
func (d *Driver) checkHeldLocks() {
	var names, owners []string
	d.mu.Lock()
	for owner, name := range d.held {
		names, owners = append(names, name), append(owners, owner)
	}
	d.mu.Unlock()
	d.alertForcedUntilDone(names, owners)
}

// alertForcedUntilDone calls alertForced until the database answers, or until Close.
func (d *Driver) alertForcedUntilDone(names, owners []string) {
	if len(names) == 0 {
		return
	}
	driverkit.RetryUnanswered(d.calls.Alive, func() error {
		ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
		defer cancel()
		return d.alertForced(ctx, names, owners)
	})
}

// alertForced notifies the client which of these locks were force-released, and why.
func (d *Driver) alertForced(ctx context.Context, names, owners []string) error {
	type taken struct{ Owner, Why string }
	r, err := queryVital(ctx, d, 0, false, pgx.RowToStructByPos[taken], d.schema.forced, names, owners)
	d.mu.Lock()
	alert := d.alert
	d.mu.Unlock()
	for _, t := range r.rows {
		if alert != nil {
			alert(t.Owner, t.Why)
		}
	}
	return err
}

// inbox queues the payloads of notifications on a connection. It drops payloads beyond its room, so that a
// flood of notifications costs no memory. A waiter whose wake-up was dropped finds the lock at its next poll.
type inbox struct {
	payloads []string
	bytes    int
}

// inboxRoom bounds the bytes of queued payloads. A payload has at most 8,000.
const inboxRoom = 1 << 20

// add queues a payload, or drops it if there is no room.
func (in *inbox) add(payload string) {
	if size := len(payload) + rowBytes; in.bytes+size <= inboxRoom {
		in.payloads, in.bytes = append(in.payloads, payload), in.bytes+size
	}
}

// awaitPayload returns the next payload of conn. It waits until ctx ends.
func (in *inbox) awaitPayload(ctx context.Context, conn *pgx.Conn) (payload string, err error) {
	for len(in.payloads) == 0 {
		if err := conn.PgConn().WaitForNotification(ctx); err != nil && len(in.payloads) == 0 {
			return "", err
		}
	}
	payload, in.payloads = in.payloads[0], in.payloads[1:]
	in.bytes -= len(payload) + rowBytes
	return payload, nil
}

// dialConn opens a connection beside the pool, with the pool's hooks for new connections. It calls notified
// with the payload of each notification. Close does not wait for a hook that ignores its context: the
// connection that such a hook returns late is closed then.
func (d *Driver) dialConn(ctx context.Context, notified func(payload string)) (*pgx.Conn, error) {
	return driverkit.CallUserFunc(d.calls.Work, func() (*pgx.Conn, error) { return d.dialByHooks(ctx, notified) }, closeConn)
}

func (d *Driver) dialByHooks(ctx context.Context, notified func(payload string)) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	cfg := d.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	cfg.ConnConfig.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { notified(n.Payload) }
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil || cfg.AfterConnect == nil {
		return conn, err
	}
	if err := cfg.AfterConnect(ctx, conn); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// nextPayload waits for the next notification and returns its payload. It returns an error when alive ends.
func (d *Driver) nextPayload(alive context.Context, conn *pgx.Conn, in *inbox) (string, error) {
	for {
		ctx, cancel := context.WithTimeout(alive, lookEvery)
		payload, err := in.awaitPayload(ctx, conn)
		cancel()
		switch {
		case err == nil:
			return payload, nil
		case alive.Err() != nil || conn.IsClosed():
			return "", err
		}
		ctx, cancel = context.WithTimeout(alive, pace.RequestTime(time.Minute, pace.Alone))
		err = conn.Ping(ctx)
		cancel()
		if err != nil {
			return "", err
		}
	}
}

// probeChannel finds out whether conn, which listens, receives notifications. It returns errPooled behind a
// pooler in transaction mode, which accepts LISTEN and then gives the listening connection to another client
// (findings/pgbouncer-listen-is-deaf.sh). It returns errShared if all connections share one session, so that
// any of them may receive the notification (findings/pglite-advisory-lock-for-each.sh).
func (d *Driver) probeChannel(ctx context.Context, conn *pgx.Conn, in *inbox) error {
	there, shared, err := d.compareSessions(ctx, conn)
	switch {
	case err != nil:
		return fmt.Errorf("probe: %w", err)
	case shared:
		d.noteShared()
		return errShared
	case there:
		return nil
	}
	switch heard, err := d.receivesOwnNotification(ctx, conn, in); {
	case err != nil:
		return fmt.Errorf("probe: %w", err)
	case !heard:
		d.states.SetBestState(0, driver.NodePolling, errPooled) // a driver that can only poll is never better than NodePolling
		return errPooled
	}
	return nil
}

// compareSessions reports whether conn leads directly to the server, and if so, whether a connection of the
// pool shares its session.
func (d *Driver) compareSessions(ctx context.Context, conn *pgx.Conn) (there, shared bool, err error) {
	if there, err = isDirect(ctx, conn); !there || err != nil {
		return there, false, err
	}
	shared, err = d.sharesSession(ctx, conn)
	return true, shared, err
}

// sharesSession reports whether a connection of the pool shares the session of conn, which leads directly to the
// server. Equal process numbers alone prove nothing: the number may be that of a connection that has ended, or of a
// process of another server.
func (d *Driver) sharesSession(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if own, other := conn.PgConn().PID(), d.backend.Load(); other != 0 && other != own {
		return false, nil
	}
	sent := rand.Text()
	if _, err := conn.Exec(ctx, "SELECT set_config('holdfast.session', $1, false)", pgx.QueryExecModeExec, sent); err != nil {
		return false, err
	}
	var found *string
	err := d.pool.QueryRow(ctx, "SELECT current_setting('holdfast.session', true)", pgx.QueryExecModeExec).Scan(&found)
	return found != nil && *found == sent, err
}

// noteShared records that connections share one session. Then a statement that one prepares exists for all.
func (d *Driver) noteShared() {
	d.straight.Store(false)
	d.states.SetBestState(0, driver.NodePolling, errShared)
}

// receivesOwnNotification reports whether conn, which listens to the driver's channel, receives a notification. If not,
// conn stops listening. A notification without the text that it sends proves nothing: behind a pooler, conn
// also receives what is meant for another client whose LISTEN went to the same session.
//
// A session sends its notifications before its next answer. So if none has come when ctx ends, conn is asked once
// more: the server may have been slow.
func (d *Driver) receivesOwnNotification(ctx context.Context, conn *pgx.Conn, in *inbox) (bool, error) {
	sent := rand.Text()
	if _, err := d.pool.Exec(ctx, "SELECT pg_notify($1, $2)", pgx.QueryExecModeExec, d.owners.Client, sent); err != nil {
		return false, err
	}
	asked := false
	for {
		switch payload, err := in.awaitPayload(ctx, conn); {
		case payload == sent:
			return true, nil
		case err == nil:
			continue
		case d.calls.Alive.Err() != nil || conn.IsClosed():
			return false, err
		case !asked:
			asked = true
			late, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
			err := conn.Ping(late)
			cancel()
			if err != nil {
				return false, err
			}
			continue
		}
		_, err := conn.Exec(d.calls.Alive, "UNLISTEN "+pgx.Identifier{d.owners.Client}.Sanitize(), pgx.QueryExecModeExec)
		return false, err
	}
}

// watchDatabase queries the database now and then, so that its state is known without any calls.
func (d *Driver) watchDatabase() {
	for driverkit.Sleep(d.calls.Alive, watchEvery) {
		d.waitConns.closeIdle(waitConnRest)
		d.reserve.closeIdle()
		d.forgetCrowds()
		ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
		r, err := queryRows(ctx, d, pgx.RowTo[int], "SELECT 1") // reports the outcome
		cancel()
		if err == nil {
			d.states.SetRoundTrip(0, time.Since(r.sent))
		}
	}
}

// reportAnswer reports the outcome of a statement as the state of the node.
func (d *Driver) reportAnswer(err error) {
	if d.calls.Alive.Err() == nil {
		d.states.Report(0, err)
	}
}

// Nodes implements driver.Notifier: the database is the one node.
func (d *Driver) Nodes() []driver.NodeEvent { return d.states.Nodes() }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) { d.states.Notify(fn) }
