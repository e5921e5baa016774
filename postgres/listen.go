package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// watchEvery is how often an idle driver asks the database whether it is there.
	watchEvery = 5 * time.Second
	// lookEvery is how often a connection that says nothing is asked whether it lives.
	lookEvery = 15 * time.Second
	// probeTime is how long a notification to oneself may take.
	probeTime = 2 * time.Second
)

// errPooled is why a driver polls.
var errPooled = errors.New("LISTEN does not work through this connection pooler, so waiters poll; it does on a direct connection, or in session mode")

// hears is the channel on which the driver listens; nil: it does not.
func (d *Driver) hears() *string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel
}

// tune sets the channel and has all that wait ask again, so that the server knows.
func (d *Driver) tune(channel *string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.channel = channel
	for _, wake := range d.waiting {
		rouse(wake)
	}
}

func rouse(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// listen opens, once, the connection on which the driver listens until Close. The
// caller is inside a call.
func (d *Driver) listen() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listens {
		return
	}
	d.listens = true
	d.tasks.Go(func() {
		for !errors.Is(d.attend(), errPooled) && sleep(d.alive, time.Second) {
		}
	})
}

// attend listens while one connection lasts.
func (d *Driver) attend() error {
	conn, err := d.dial()
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		conn.Close(ctx)
	}()
	ctx, cancel := context.WithTimeout(d.alive, probeTime)
	defer cancel()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{d.client}.Sanitize(), pgx.QueryExecModeExec); err != nil {
		return err
	}
	if err := d.probe(ctx, conn); err != nil {
		return err
	}
	d.tune(&d.client)
	defer d.tune(nil)
	for {
		n, err := d.next(conn)
		if err != nil {
			return err
		}
		d.mu.Lock()
		if wake := d.waiting[n]; wake != nil {
			rouse(wake)
		}
		alert := d.alert
		d.mu.Unlock()
		if owner, why, ok := strings.Cut(n, forced); ok && alert != nil {
			alert(owner, why)
		}
	}
}

// dial opens a connection beside the pool, as the pool would.
func (d *Driver) dial() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(d.alive, patience(time.Minute))
	defer cancel()
	cfg := d.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, cfg.ConnConfig)
}

// next waits for the next notification and returns its payload.
func (d *Driver) next(conn *pgx.Conn) (string, error) {
	for {
		ctx, cancel := context.WithTimeout(d.alive, lookEvery)
		n, err := conn.WaitForNotification(ctx)
		cancel()
		switch {
		case err == nil:
			return n.Payload, nil
		case d.alive.Err() != nil || conn.IsClosed():
			return "", err
		}
		ctx, cancel = context.WithTimeout(d.alive, patience(time.Minute))
		err = conn.Ping(ctx)
		cancel()
		if err != nil {
			return "", err
		}
	}
}

// probe finds out whether notifications arrive. A pooler in transaction mode takes
// LISTEN for an answer, and gives the connection that listens to the next client.
func (d *Driver) probe(ctx context.Context, conn *pgx.Conn) error {
	if there, err := direct(ctx, conn); there || err != nil {
		return err
	}
	switch heard, err := d.heard(ctx, conn); {
	case err != nil:
		return fmt.Errorf("probe: %w", err)
	case !heard:
		d.mu.Lock()
		d.polls = errPooled
		d.mu.Unlock()
		d.report(driver.NodePolling, errPooled)
		return errPooled
	}
	return nil
}

// heard says whether a notification arrives at conn, which listens to the driver's channel.
// Where none does, it listens no more.
func (d *Driver) heard(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if _, err := d.pool.Exec(ctx, "SELECT pg_notify($1, '')", pgx.QueryExecModeExec, d.client); err != nil {
		return false, err
	}
	_, err := conn.WaitForNotification(ctx)
	if err == nil || d.alive.Err() != nil || conn.IsClosed() {
		return err == nil, err
	}
	conn.Exec(d.alive, "UNLISTEN *", pgx.QueryExecModeExec)
	return false, nil
}

// watch asks the database now and then, so that its state is known while nobody calls.
func (d *Driver) watch() {
	for sleep(d.alive, watchEvery) {
		r, err := query(d.alive, d, patience(time.Minute), pgx.RowTo[int], "SELECT 1") // the outcome is reported
		if err == nil {
			d.timed(time.Since(r.sent))
		}
	}
}

// timed notes how long the database took to answer.
func (d *Driver) timed(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := cmp.Or(d.trip, took)
	d.trip = last + (took-last)/4
}

// report notes the state of the database, and tells of it if it is new. While the
// driver can but poll, that is the best there is.
func (d *Driver) report(state driver.NodeState, err error) {
	if d.alive.Err() != nil {
		return
	}
	d.mu.Lock()
	if state == driver.NodeUp && d.polls != nil {
		state, err = driver.NodePolling, d.polls
	}
	news := d.state.State != state
	d.state = driver.NodeEvent{Node: d.node, State: state, Err: err}
	e, notify := d.state, d.notify
	d.mu.Unlock()
	if news && notify != nil {
		notify(e)
	}
}

// Nodes implements driver.Notifier: the database is the one node.
func (d *Driver) Nodes() []driver.NodeEvent {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.state
	if e.State != driver.NodeDown {
		e.RoundTrip = d.trip
	}
	return []driver.NodeEvent{e}
}

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = fn
}
