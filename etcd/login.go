package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// login logs in to one member. The client library's login does not work: it sends an expired token with the
// request for a new one, which servers of version 3.4 reject, and it logs in for each request separately.
//
// All callers wait for the same login. It continues after they have given up, so that the next caller finds it
// done.
type login struct {
	username, password string

	mu     sync.Mutex    // guards what follows
	last   *loginAttempt // in progress or accepted; nil: none
	closed bool
	tasks  sync.WaitGroup // no task is added after closed is set
}

// loginAttempt is one login.
type loginAttempt struct {
	done  chan struct{} // closed once the other fields are set
	token string        // empty: the member needs no token
	err   error
}

// isStale reports whether the member wants a new login. After a change of users or roles it rejects
// older JWT tokens.
func isStale(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// withLogin returns ctx with the token for requests, and the login that it uses; nil: there is no user.
func (n *node) withLogin(ctx context.Context) (context.Context, *loginAttempt, error) {
	if n.username == "" {
		return ctx, nil, nil
	}
	p := n.currentLogin()
	if p == nil {
		return nil, nil, driver.ErrClosed
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, nil, driverkit.StallError{Err: fmt.Errorf("login: %w", context.Cause(ctx))}
	}
	if p.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, p.token)
	}
	return ctx, p, p.err
}

// currentLogin returns the last login, or begins one; nil after close.
func (n *node) currentLogin() *loginAttempt {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	if n.last == nil {
		p := &loginAttempt{done: make(chan struct{})}
		n.last = p
		n.tasks.Go(func() { n.authenticate(p) })
	}
	return n.last
}

func (n *node) authenticate(p *loginAttempt) {
	defer close(p.done)
	ctx, cancel := driverkit.WithLimit(n.work, pace.LoginTime())
	defer cancel()
	resp, err := n.client.Authenticate(ctx, n.username, n.password)
	switch {
	case err == nil:
		p.token = resp.Token
	case !errors.Is(err, rpctypes.ErrAuthNotEnabled):
		p.err = fmt.Errorf("login: %w", explainError(ctx, err))
		n.forget(p)
	}
}

// isLoggingIn reports whether a login is waiting for its answer.
func (l *login) isLoggingIn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return false
	}
	select {
	case <-l.last.done:
		return false
	default:
		return true
	}
}

// forget makes the next caller log in again, unless another caller has done so since p.
func (l *login) forget(p *loginAttempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == p {
		l.last = nil
	}
}

func (l *login) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.tasks.Wait()
}
