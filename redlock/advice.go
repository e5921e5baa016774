package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// mend adds to an error what to do about it, where the server's text does not say
// it. secure says whether TLS was used.
func mend(err error, secure bool) error {
	text := err.Error()
	reset := errors.Is(err, syscall.ECONNRESET)
	switch {
	case secure && (reset || strings.Contains(text, "certificate required") || strings.Contains(text, "bad certificate")):
		return advise(err, "it may want a client certificate; give one in TLS, or cert and key in the URL (docs/operations.md)")
	case secure && strings.Contains(text, "TLS handshake") && errors.Is(err, context.DeadlineExceeded):
		return advise(err, "if it does not speak TLS on this port, use redis:// or its TLS port")
	case !secure && reset:
		return advise(err, "if it speaks TLS on this port, use rediss:// or tls=true")
	case errors.Is(err, resp.ErrFormat):
		return advise(err, "this may be the port of another program")
	case errors.Is(err, driver.ErrConfig), errors.Is(err, driver.ErrAuth):
		return err
	case strings.Contains(text, "NOAUTH"):
		return advise(errAuth(err), "it asks for a password; give Username and Password")
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return advise(errAuth(err), "check Username and Password")
	case strings.HasPrefix(text, "HELLO: ") && strings.Contains(text, "unknown command"):
		return unfit("give a newer server", "%w: it is older than Redis 6", err)
	case strings.Contains(text, "nknown") && strings.Contains(text, "command"):
		return unfit("give a server that has it under its own name", "%w: the command was renamed, or a proxy does not know it, and locks need it", err)
	case lacksRight(text):
		return advise(errAuth(err), "grant the rights in docs/operations.md")
	case strings.Contains(text, "DB index is out of range"):
		return unfit("choose another DB", "%w", err)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return unfit("use redis:// or its TLS port", "%w: it does not speak TLS on this port", err)
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return unfit("give the CA that signed its certificate", "%w", err)
	}
	return err
}

// advised is an error with what mends it.
type advised struct {
	error
	mend string
}

func (e *advised) Error() string { return e.error.Error() + "; " + e.mend }
func (e *advised) Unwrap() error { return e.error }

func advise(err error, mend string) error { return &advised{err, mend} }

// unfit says why a node is not fit for locks, and what mends it.
func unfit(mend, format string, args ...any) error {
	return advise(fmt.Errorf("%w: "+format, append([]any{driver.ErrConfig}, args...)...), mend)
}

// refusals are how servers say that a right is missing: of Redis 6 and 7.0 in scripts,
// of all outside of scripts, and of newer ones in scripts.
var refusals = []string{"The user executing the script", "NOPERM", "ACL failure"}

func lacksRight(text string) bool {
	return slices.ContainsFunc(refusals, func(r string) bool { return strings.Contains(text, r) })
}

func errAuth(err error) error { return fmt.Errorf("%w: %w", driver.ErrAuth, err) }

// errReplica is no reason to end a wait: after a failover the address may lead to the
// old master for a while.
var errReplica = errors.New("it is a replica")

// lasting says whether a node stays down until an operator changes something.
func lasting(err error) bool {
	return (errors.Is(err, driver.ErrConfig) || errors.Is(err, driver.ErrAuth)) && !errors.Is(err, errReplica)
}

// code is the first word of an error reply, by which servers say what kind it is. A
// script of Redis 6 hides that of a command within its own.
func code(text []byte) string {
	word, rest, _ := strings.Cut(string(text), " ")
	if word == "ERR" && strings.HasPrefix(rest, "Error running script") {
		if _, inner, ok := strings.Cut(rest, ": -"); ok {
			word, _, _ = strings.Cut(inner, " ")
		}
	}
	return word
}

// fatal says whether a server that refuses with code will do so until an operator
// changes rights, credentials, a key of another type where the queue or the counter
// should be, or a command or script that it should know. The other codes pass: the
// server loads its data, is busy, lacks replicas or memory for the time being,
// cannot save, or is a replica now.
func fatal(code string) bool {
	return slices.Contains([]string{"ERR", "NOPERM", "NOAUTH", "WRONGPASS", "DENIED", "WRONGTYPE"}, code)
}

// outdated is why the checks at the start of a connection hold no more, if v says
// so: the server is a replica now, or no longer in the run in which it was
// admitted.
func outdated(v resp.Value) error {
	if !v.IsError() {
		return nil
	}
	switch code(v.Text) {
	case "UNADMITTED":
		return errForgot
	case "READONLY", "MASTERDOWN":
		return serverError(v)
	}
	return nil
}

// even is why a number of nodes costs more than it gives.
func even(n int) error {
	return advise(fmt.Errorf("%d nodes survive the loss of %d, no more than %d nodes do", n, n-quorum.Majority(n), n-1), "use an odd number")
}

func siblings(who string) string {
	return who + " use this server too: their locks and the locks of this client do not exclude one another"
}

// warnOfSet warns of a number of nodes that costs more than it gives, and of clients
// on the same server that use other keys for the same names.
func (d *Driver) warnOfSet(ctx context.Context) {
	if n := len(d.nodes); n%2 == 0 && n > 0 {
		d.opts.Logger.Warn(even(n).Error(), "nodes", n)
	}
	level := slog.LevelInfo // it may be meant so
	if d.opts.ReadOnly {
		level = slog.LevelWarn // the lock that is looked for may be one of the others
	}
	marker, who := d.opts.sibling()
	for _, n := range d.nodes {
		if marker == "" {
			return
		}
		replies, err := n.do(ctx, []string{"GET", marker})
		if err != nil {
			continue
		}
		if text, _ := replies[0].(string); text != "" {
			d.opts.Logger.Log(ctx, level, siblings(who), "node", n.addr, "marker", marker)
		}
		return
	}
}
