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

// login logs in to one member. The client of etcd is not left to do it: it sends the token that has run out with the
// request for a new one, which servers of version 3.4 refuse therefore, and it logs in for each request by itself.
//
// All who need a login wait for the same one. It goes on when they have given up, so that whoever comes next finds it done.
type login struct {
	username, password string

	mu     sync.Mutex // guards what follows
	last   *pass      // under way, or accepted so far; nil: there is none
	closed bool
	tasks  sync.WaitGroup // nothing is added after closed
}

// pass is one login.
type pass struct {
	done  chan struct{} // closed once the others are set
	token string        // empty: the member asks for none
	err   error
}

// isStale reports whether the member wants a new login. After a change of users or roles it rejects
// older JWT tokens.
func isStale(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// withLogin returns ctx with what requests need, and the login that it stands for; nil: there is no user to log in.
func (n *node) withLogin(ctx context.Context) (context.Context, *pass, error) {
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
		return nil, nil, driverkit.Stall{Err: fmt.Errorf("login: %w", context.Cause(ctx))}
	}
	if p.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, p.token)
	}
	return ctx, p, p.err
}

// currentLogin returns the last login, or one that begins now; nil after close.
func (n *node) currentLogin() *pass {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	if n.last == nil {
		p := &pass{done: make(chan struct{})}
		n.last = p
		n.tasks.Go(func() { n.authenticate(p) })
	}
	return n.last
}

func (n *node) authenticate(p *pass) {
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

// loggingIn reports whether a login has no answer yet.
func (l *login) loggingIn() bool {
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

// forget has the next caller log in anew, unless somebody has done so since p.
func (l *login) forget(p *pass) {
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
