package postgres

import (
	"context"
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
	// watchEvery is the time between two questions of an idle driver to the database.
	watchEvery = 5 * time.Second
	// lookEvery is the time between two pings of a connection that brings no notification.
	lookEvery = 5 * time.Second
)

// Reasons for which a driver never listens.
var (
	errPooled = errors.New("LISTEN does not work through this connection pooler, so waiters poll; it does on a direct connection, or in session mode")
	errShared = errors.New("several connections share one session of the server, so waiters poll, and no statement is prepared; " +
		"use a server that gives each connection a session of its own")
)

// currentChannel returns the channel on which the driver listens, nil where it does not, and a channel that is
// closed when that changes.
func (d *Driver) currentChannel() (channel *string, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel, d.tuned
}

// setChannel sets the channel and has all that wait ask again, so that the server knows.
func (d *Driver) setChannel(channel *string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.channel = channel
	close(d.tuned)
	d.tuned = make(chan struct{})
}

// startListening opens, once, the connection on which the driver listens until Close. The
// caller is inside a call.
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

// listenOnce listens while one connection lasts.
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
	d.calls.Go(d.lookAtHeld)
	for {
		n, err := d.nextPayload(link, conn, &in)
		if err != nil {
			return err
		}
		d.handlePayload(n)
	}
}

// handlePayload does what a notification calls for: it has a waiter ask, or the client look whether its lock was taken away.
// Every user of the database can send one, so what it has in it is a hint, and text of a stranger.
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
	if owner, why, ok := strings.Cut(payload, forced); ok && alert != nil {
		alert(owner, why)
	}
}

// forgetHold notes that the driver no longer holds the lock of owner.
func (d *Driver) forgetHold(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, owner)
}

// lookAtHeld looks once at each lock that the driver holds: while it did not listen, one may have been
// taken away by force.
func (d *Driver) lookAtHeld() {
	var names, owners []string
	d.mu.Lock()
	for owner, name := range d.held {
		names, owners = append(names, name), append(owners, owner)
	}
	d.mu.Unlock()
	d.lookForForced(names, owners)
}

// lookForForced is alertForced, repeated while the database does not answer, until Close.
func (d *Driver) lookForForced(names, owners []string) {
	if len(names) == 0 {
		return
	}
	driverkit.Insist(d.calls.Alive, func() error {
		ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
		defer cancel()
		return d.alertForced(ctx, names, owners)
	})
}

// alertForced tells the client which of these locks were taken away by force, and why.
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

// inbox keeps the payloads of notifications that came to a connection, and drops those for which it has no room: whoever sends
// without end costs wake-ups, no memory. A poll stands behind each of them.
type inbox struct {
	payloads []string
	bytes    int
}

// inboxRoom bounds the payloads that wait, in bytes. A payload has at most 8,000.
const inboxRoom = 1 << 20

// add keeps one more payload.
func (in *inbox) add(payload string) {
	if size := len(payload) + rowBytes; in.bytes+size <= inboxRoom {
		in.payloads, in.bytes = append(in.payloads, payload), in.bytes+size
	}
}

// awaitPayload returns the next payload that came to conn, and waits for it until ctx ends.
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

// dialConn opens a connection beside the pool, by the hooks of the pool for a new one. It calls notified with the payload of each notification.
// Close does not wait for a hook that has no regard to its context: what that opens is closed later.
func (d *Driver) dialConn(ctx context.Context, notified func(payload string)) (*pgx.Conn, error) {
	return driverkit.CallAside(d.calls.Work, func() (*pgx.Conn, error) { return d.dialByHooks(ctx, notified) }, closeConn)
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

// nextPayload waits for the next notification and returns its payload. It ends with alive.
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

// probeChannel finds out whether notifications arrive at conn, which listens. It returns errPooled behind a pooler in
// transaction mode, which accepts LISTEN and gives the connection that listens to the next client (findings/pgbouncer-listen-is-deaf.sh),
// and errShared where a notification goes to any connection of the one session (findings/pglite-advisory-lock-for-each.sh).
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
	switch heard, err := d.hearsChannel(ctx, conn, in); {
	case err != nil:
		return fmt.Errorf("probe: %w", err)
	case !heard:
		d.states.Limit(0, driver.NodePolling, errPooled) // while the driver can but poll, that is the best there is
		return errPooled
	}
	return nil
}

// compareSessions reports whether conn leads to the server itself, and if so, whether a connection of the pool leads to
// the same session.
func (d *Driver) compareSessions(ctx context.Context, conn *pgx.Conn) (there, shared bool, err error) {
	if there, err = isDirect(ctx, conn); !there || err != nil {
		return there, false, err
	}
	own, other := conn.PgConn().PID(), d.backend.Load()
	if other == 0 || other == own { // not known, or perhaps of a connection that has ended
		err = d.pool.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&other)
	}
	return true, other == own, err
}

// noteShared notes that connections share a session of the server. What one of them prepares is there for all.
func (d *Driver) noteShared() {
	d.straight.Store(false)
	d.states.Limit(0, driver.NodePolling, errShared)
}

// hearsChannel reports whether a notification arrives at conn, which listens to the driver's channel. If none does, conn stops listening.
func (d *Driver) hearsChannel(ctx context.Context, conn *pgx.Conn, in *inbox) (bool, error) {
	if _, err := d.pool.Exec(ctx, "SELECT pg_notify($1, '')", pgx.QueryExecModeExec, d.owners.Client); err != nil {
		return false, err
	}
	_, err := in.awaitPayload(ctx, conn)
	if err == nil || d.calls.Alive.Err() != nil || conn.IsClosed() {
		return err == nil, err
	}
	conn.Exec(d.calls.Alive, "UNLISTEN *", pgx.QueryExecModeExec)
	return false, nil
}

// watchDatabase asks the database now and then, so that its state is known while nobody calls.
func (d *Driver) watchDatabase() {
	for driverkit.Sleep(d.calls.Alive, watchEvery) {
		d.ears.closeIdle(earRest)
		d.reserve.closeIdle()
		d.forgetCrowds()
		ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
		r, err := queryRows(ctx, d, pgx.RowTo[int], "SELECT 1") // the outcome is reported
		cancel()
		if err == nil {
			d.states.Timed(0, time.Since(r.sent))
		}
	}
}

// reportAnswer notes the outcome of a statement.
func (d *Driver) reportAnswer(err error) {
	if d.calls.Alive.Err() == nil {
		d.states.Report(0, err)
	}
}

// Nodes implements driver.Notifier: the database is the one node.
func (d *Driver) Nodes() []driver.NodeEvent { return d.states.Nodes() }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) { d.states.Notify(fn) }
