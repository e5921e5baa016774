// Package server examines one Redis server: dialing and login, INFO, permissions and abilities. It adds to
// errors how to fix them.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// ErrReplica does not end a wait: after a failover the address may still lead to the old master for a while.
var ErrReplica = errors.New("it is a replica")

// AddAdvice adds the fix to an error, unless the server's text contains one. secure reports whether TLS was
// used.
func AddAdvice(err error, secure bool) error {
	text := err.Error()
	reset := errors.Is(err, syscall.ECONNRESET)
	certificate := driverkit.URLOptionNames.TLSFix(text)
	switch {
	case strings.Contains(text, "max number of clients"):
		return Advise(err, "close unused connections (CLIENT LIST), or raise its maxclients")
	case secure && certificate == "" && (reset || strings.HasPrefix(text, "TLS handshake: ") && errors.Is(err, io.EOF)):
		return Advise(err, "it may want a client certificate; give one by "+driverkit.URLOptionNames.Pair+"; "+
			"or raise its maxclients, if they are reached: https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#tls")
	case secure && strings.Contains(text, "TLS handshake") && errors.Is(err, context.DeadlineExceeded):
		return Advise(err, "if it does not speak TLS on this port, use redis:// or its TLS port")
	case strings.HasPrefix(text, "HELLO: ") && errors.Is(err, io.EOF):
		return Advise(err, "it has closed the connection there, as a proxy does that does not know HELLO, or whose server is down: "+
			"give the address of Redis 6 or newer, or Valkey, itself")
	case !secure && reset:
		return Advise(err, "start it if it is down; only if it speaks TLS on this port, use rediss:// or tls=true")
	case errors.Is(err, resp.ErrFormat):
		return Advise(err, "this may be the port of another program")
	case errors.Is(err, driver.ErrConfig), errors.Is(err, driver.ErrAuth):
		return err
	case strings.Contains(text, "NOAUTH"):
		return Advise(AuthError(err), "it asks for a password; give user and password")
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return Advise(AuthError(err), "correct user and password")
	case IsUnknownCommand(text):
		return UnfitError("give a server that has it under its own name", "%w: the command was renamed, or a proxy does not know it, and locks need it", err)
	case LacksPermission(text):
		return Advise(AuthError(err), "grant the permissions in https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#rights")
	case strings.Contains(text, "DB index is out of range"):
		return UnfitError("choose another DB", "%w", err)
	case strings.Contains(text, "SELECT is not allowed in cluster mode"):
		return UnfitError("leave it out, or give Valkey 9 or newer with cluster-databases", "%w: its cluster has database 0 alone", err)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return UnfitError("use redis:// or its TLS port", "%w: it does not speak TLS on this port", err)
	case IsMisconf(text):
		return Advise(err, FixDisk)
	case strings.Contains(text, "NOREPLICAS"):
		return Advise(err, FixReplicas)
	}
	if cert := new(tls.CertificateVerificationError); errors.As(err, &cert) {
		return UnfitError(certificate, "%w", err)
	}
	if certificate != "" {
		return Advise(err, certificate)
	}
	return err
}

// WithPatience returns a context that ends with ctx, or after the time each without an answer. answered
// restarts that time.
func WithPatience(ctx context.Context, each time.Duration) (patient context.Context, answered, cancel func()) {
	patient, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(each, func() { end(context.DeadlineExceeded) })
	return patient, func() { timer.Reset(each) }, func() { timer.Stop(); end(nil) }
}

// LateError returns the error for an attempt that failed with err because ctx has ended. It matches the error
// of ctx.
func LateError(ctx context.Context, err error) error {
	if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if u, ok := errors.AsType[*resp.UnansweredError](err); ok {
		return lateError{"to " + u.Command + " "}
	}
	return lateError{}
}

// lateError is context.DeadlineExceeded with the name of the unanswered command.
type lateError struct{ to string }

func (e lateError) Error() string      { return "no answer " + e.to + "before the timeout" }
func (lateError) Is(target error) bool { return target == context.DeadlineExceeded }

// FixDisk is the fix for a server that rejects writes because it cannot save its data.
const FixDisk = "free space on its disk or replace the disk, then BGSAVE; or CONFIG SET save \"\" if nobody needs its snapshots"

// FixReplicas is the fix for a master that rejects writes because too few replicas keep up with it.
const FixReplicas = "start its replicas, or fix the network to them; if it needs none, CONFIG SET min-replicas-to-write 0"

// IsMisconf reports whether a server has rejected a write because it could not save its data.
func IsMisconf(text string) bool { return strings.Contains(text, "MISCONF") }

// IsUnknownCommand reports whether a server does not know a command. Servers that imitate Redis use other words
// for it.
func IsUnknownCommand(text string) bool {
	return strings.Contains(text, "command") && slices.ContainsFunc([]string{"nknown", "nsupported", "not support"},
		func(word string) bool { return strings.Contains(text, word) })
}

// AdvisedError is an error with its fix.
type AdvisedError struct {
	error
	Fix string
}

func (e *AdvisedError) Error() string { return e.error.Error() + "; " + e.Fix }
func (e *AdvisedError) Unwrap() error { return e.error }

// Advise adds the fix to an error.
func Advise(err error, fix string) error { return &AdvisedError{err, fix} }

// UnfitError returns the error for a node that is not fit for locks, with the fix.
func UnfitError(fix, format string, args ...any) error {
	return Advise(fmt.Errorf("%w: "+format, append([]any{driver.ErrConfig}, args...)...), fix)
}

// missingPermissions are the texts by which servers report a missing permission: Redis 6 and 7.0 in scripts, all
// servers outside of scripts, and newer ones in scripts.
var missingPermissions = []string{"The user executing the script", "NOPERM", "ACL failure"}

// LacksPermission reports whether a server has answered that a permission is missing.
func LacksPermission(text string) bool {
	return slices.ContainsFunc(missingPermissions, func(r string) bool { return strings.Contains(text, r) })
}

// AuthError returns err as an error that matches driver.ErrAuth.
func AuthError(err error) error { return fmt.Errorf("%w: %w", driver.ErrAuth, err) }

// IsPermanent reports whether a node stays down until an operator changes something.
func IsPermanent(err error) bool {
	return (errors.Is(err, driver.ErrConfig) || errors.Is(err, driver.ErrAuth)) && !errors.Is(err, ErrReplica)
}
