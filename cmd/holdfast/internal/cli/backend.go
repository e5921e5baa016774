package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lines"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sharding"
)

// openDriver opens the backend.
func (a *app) openDriver(ctx context.Context) (driver.Driver, error) {
	return a.dialWith(ctx, &driver.OpenOptions{})
}

func (a *app) dialWith(ctx context.Context, opts *driver.OpenOptions) (driver.Driver, error) {
	if err := a.loadBackend(); err != nil {
		return nil, err
	}
	if a.backend == "" {
		return nil, a.errNoBackend()
	}
	opts.Logger, opts.ClientName = a.log, "holdfast"
	if !a.verbose && !a.quiet { // advice does not belong in a job's log
		opts.Logger = lines.New(a.io.Err, a.logFormat, slog.LevelWarn)
	}
	drv, err := sharding.Open(ctx, a.backend, opts)
	return drv, a.nameSetting(err)
}

// nameSetting adds to err, which rejects a backend, the setting that named the backend.
func (a *app) nameSetting(err error) error {
	flag := "backend"
	if a.from[flag] == "" {
		flag = "backend-file"
	}
	if errors.Is(err, driver.ErrInvalid) {
		return fmt.Errorf("%s: %w", a.nameFlag(flag), err)
	}
	return err
}

// errNoBackend returns the error for a command without a backend: how to name one, and why none was found.
func (a *app) errNoBackend() error {
	text := "no backend: give --backend URL or set HOLDFAST_BACKEND, for instance HOLDFAST_BACKEND=redis://localhost:6379"
	if file, set := os.LookupEnv(variableName("backend-file")); set && file == "" {
		text += "; " + variableName("backend-file") + " is set, and empty: it may name a file with the URL"
	}
	if os.Getenv(run.EnvPrefix+"HELD") != "" {
		text += "; the run around this command keeps one with a password to itself, so give --backend-file"
	}
	if err := errors.Join(a.unread...); err != nil {
		text += "; not read: " + oneLine(err)
	}
	return exitcode.Usagef("%s", text)
}

// backendScheme returns the scheme of the URL, which has no secrets; of several URLs, all schemes.
func (a *app) backendScheme() string { return strings.Join(driverkit.Schemes(a.backend), ",") }

// openForHolder opens the backend for a holder. If patient, it accepts a backend that is down, because the
// caller waits anyway.
func (a *app) openForHolder(ctx context.Context, opts *holdfast.Options, patient bool) (*holdfast.Client, error) {
	drv, err := a.dialWith(ctx, &driver.OpenOptions{AllowDown: patient})
	if err != nil {
		return nil, err
	}
	_, a.leaves = drv.(driver.Adopter)
	return holdfast.New(drv, opts)
}

// adviseWaiting adds advice to err: how to wait for a backend that is down, and how to find the fault. With
// knows, the caller already waits and needs no advice.
func (a *app) adviseWaiting(err error, knows bool) error {
	if knows || !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, driver.ErrAuth) || errors.Is(err, driver.ErrConfig) {
		return err
	}
	return adviseDoctor(fmt.Errorf("%w; -w 10m waits for it", err))
}

// adviseDoctor adds to the error of a backend that is down how to find the fault, once.
func adviseDoctor(err error) error {
	if exitcode.Of(err) != exitcode.Unavailable || strings.Contains(err.Error(), "holdfast doctor") {
		return err
	}
	return fmt.Errorf("%w; holdfast doctor tells what is wrong, and how to fix it", err)
}

// failoverTTLReserve is the time by which TTLs must stay below the longest TTL if a server may take over: see
// docs/your-redis.md.
const failoverTTLReserve = 5 * time.Second

// fitTTL rejects a TTL that the backend does not support, without a request. A default TTL is lowered to the
// longest possible.
func (a *app) fitTTL(flag string, d *time.Duration) error {
	if *d == 0 {
		return nil
	}
	most := a.backendLimits().MaxTTL
	switch {
	case most == 0 || *d <= most:
		return nil
	case a.from[flag] == "":
		if *d = most; a.failsOver() {
			*d = max(most-failoverTTLReserve, most/2)
		}
		return nil
	}
	return exitcode.Usagef("%s %v: too long; this backend keeps a lock for %v at most; %s", a.nameFlag(flag), *d, most, a.adviseLongHold(*d, most))
}

// offlineDriver returns a driver for the backend that sends no request.
func (a *app) offlineDriver() (driver.Driver, error) {
	return sharding.Open(context.Background(), a.backend, &driver.OpenOptions{NoCheck: true})
}

// isRedis reports whether the backend is one set of Redis.
func (a *app) isRedis() bool {
	drv, err := a.offlineDriver()
	if err != nil {
		return false
	}
	defer drv.Close()
	_, redis := drv.(*redis.Driver)
	return redis
}

// backendLimits returns the limits of the backend without a request. For a bad URL it returns none: opening it
// reports the error.
func (a *app) backendLimits() driver.Limits {
	drv, err := a.offlineDriver()
	if err != nil {
		return driver.Limits{}
	}
	defer drv.Close()
	return drv.Limits()
}

// singleRedisMaxTTL is the longest TTL on a single Redis.
const singleRedisMaxTTL = 24 * time.Hour

// adviseLongHold returns advice for holding a lock for d on a backend whose leases last at most most.
func (a *app) adviseLongHold(d, most time.Duration) string {
	held := "hold the lock by a process that lives so long, as run does, which renews"
	switch {
	case !a.isRedis():
		return held
	case most >= singleRedisMaxTTL:
		return fmt.Sprintf("?maxttl=%v in the URL of all clients raises that; or %s; or take PostgreSQL or etcd", d, held)
	}
	return fmt.Sprintf("?maxttl=%v in the URL of all clients raises that, and of several nodes one that restarts without its data then stays silent for as long; "+
		"or %s; or take one Redis (24h), PostgreSQL or etcd", d, held)
}

// waiterOptions returns the client options of a command that may wait for a lock.
func (a *app) waiterOptions(program string, w *wait) *holdfast.Options {
	opts := a.clientOptions(program)
	opts.Hooks.Waiting = w.lockHeld
	told := opts.Hooks.Node
	opts.Hooks.Node = func(e holdfast.NodeEvent) {
		told(e)
		w.nodeChanged()
	}
	return opts
}

func (a *app) clientOptions(program string) *holdfast.Options {
	host, _ := os.Hostname()
	opts := &holdfast.Options{
		Holder: holdfast.Holder{Host: host, PID: os.Getpid(), Program: program},
		Logger: slog.New(slog.DiscardHandler), // each command logs by itself
	}
	opts.Hooks.Node = func(e holdfast.NodeEvent) {
		a.log.Debug("node changed", "node", e.Node, "state", string(e.State), "cause", e.Err)
	}
	opts.Hooks.AtRisk = func(e holdfast.AtRiskEvent) {
		a.log.Debug("redundancy changed", "name", e.Key, "at_risk", e.AtRisk)
	}
	opts.Hooks.Acquired = func(e holdfast.AcquiredEvent) {
		a.log.Debug("acquired", "name", e.Key, "token", int64(e.Token), "waited", view.Short(e.Waited))
	}
	var said sync.Once
	opts.Hooks.SizeMismatch = func(e holdfast.SizeMismatchEvent) {
		said.Do(func() {
			a.log.Warn(fmt.Sprintf("%q is asked for with %s here, and with %s by its holder: give the same number everywhere", e.Key, e.Requested, e.Existing))
		})
	}
	return opts
}

// withClient opens a client and calls do with it. The context ends on a signal.
func (a *app) withClient(open func(context.Context) (*holdfast.Client, error), do func(context.Context, *holdfast.Client) error) error {
	ctx, stop := signalContext()
	defer stop()
	client, err := open(ctx)
	if err != nil {
		return signalOrError(ctx, err)
	}
	defer client.Close()
	return signalOrError(ctx, do(ctx, client))
}

// openReader opens the backend for a command that only reads.
func (a *app) openReader(ctx context.Context) (*holdfast.Client, error) {
	drv, err := a.dialWith(ctx, &driver.OpenOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, a.clientOptions("holdfast"))
}

// openWriter opens the backend for a command that changes locks.
func (a *app) openWriter(ctx context.Context) (*holdfast.Client, error) {
	return a.openForHolder(ctx, a.clientOptions("holdfast"), false)
}

// busyError adds to an ErrHeld the holder, as far as the backend knows it.
func (a *app) busyError(client *holdfast.Client, err error) error {
	held, ok := errors.AsType[*holdfast.HeldError](err)
	e, named := errors.AsType[*holdfast.Error](err)
	if !ok || !named {
		return a.withBackendName(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pace.HintTime())
	defer cancel()
	var token holdfast.Token
	if st, asked := client.Inspect(ctx, e.Key); asked == nil && st.Held && st.Owner == held.Owner {
		token, held.Remaining, held.Waiters = st.Token, st.Remaining, st.Waiters
	}
	text := fmt.Sprintf("%s, %d waiting", heldBy(e.Key, held), held.Waiters)
	if token != 0 {
		text += fmt.Sprintf(", token %d", token)
	}
	return &busyError{text: text, err: err}
}

// withBackendName adds the backend to an error that names no node, such as the error of a wait that ended before
// an answer.
func (a *app) withBackendName(err error) error {
	if down, ok := errors.AsType[*holdfast.UnavailableError](err); ok && len(down.Nodes) == 0 {
		return fmt.Errorf("%w; the backend is %s", err, driverkit.Mask(a.backend))
	}
	return err
}

// busyError is an ErrHeld with a text about the holder.
type busyError struct {
	text string
	err  error
}

func (e *busyError) Error() string { return e.text }
func (e *busyError) Unwrap() error { return e.err }

// heldBy describes a lock that is held. The age is by the holder's clock, and counts from its request for the
// lock: nothing else is known.
func heldBy(name string, held *holdfast.HeldError) string {
	var b strings.Builder
	if held.Kept {
		return fmt.Sprintf("%q was released by %v, and is kept for another %s as it asked (--hold-at-least)", name, held.Holder, view.Short(held.Remaining))
	}
	fmt.Fprintf(&b, "%q is %v", name, held)
	if !held.Since.IsZero() {
		fmt.Fprintf(&b, ", who asked for it %s ago by its clock", view.Age(held.Since))
	}
	if held.Remaining >= 0 {
		fmt.Fprintf(&b, ", lease %s left", view.Short(held.Remaining))
	} else {
		b.WriteString(", without an end")
	}
	return b.String()
}
