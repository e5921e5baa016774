package fence

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/holdfast-go/holdfast"
)

// The headers in which a request carries the lease it is made under.
const (
	KeyHeader   = "Holdfast-Key"
	TokenHeader = "Holdfast-Token"
	OwnerHeader = "Holdfast-Owner"
)

// SetHeader puts lease into the headers of a request.
func SetHeader(h http.Header, lease *holdfast.Lease) {
	h.Set(KeyHeader, lease.Key())
	h.Set(TokenHeader, strconv.FormatInt(int64(lease.Token()), 10))
	h.Set(OwnerHeader, lease.Owner())
}

// Handler passes a request to next if it carries a lease that is not stale. key
// returns the lock that guards what a request is about, and "" for none. The
// request must name that very key: the lease of another lock does not count.
//
// A write runs inside Guard.Do: the next write to the same key waits until next
// has returned, so next should read a slow body first or bound it. GET and HEAD
// need no lease. With one, they claim its token and do not block other
// requests.
//
// Handler believes the headers. Whoever can send a request can name a token that no lease has, and the real holders get
// 412 from then on, until Forget. So authenticate callers in a handler around this one, and pass on requests of those
// alone that may hold the lock.
//
// Refusals: 412 for a stale token, with the highest one seen in Holdfast-Token;
// 428 where the headers are missing; 400 where they cannot be read.
func (g *Guard) Handler(key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := key(r)
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if want == "" || reads && r.Header.Get(TokenHeader) == "" {
			next.ServeHTTP(w, r)
			return
		}
		token, status, err := leaseOf(r, want)
		if err != nil {
			http.Error(w, err.Error(), status)
			return
		}
		serve := func() error { next.ServeHTTP(w, r); return nil }
		owner := r.Header.Get(OwnerHeader)
		if reads {
			if err = g.Claim(want, token, owner); err == nil {
				err = serve()
			}
		} else {
			err = g.Do(want, token, owner, serve)
		}
		if err != nil {
			highest, _ := g.Highest(want)
			w.Header().Set(TokenHeader, strconv.FormatInt(int64(highest), 10))
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		}
	})
}

// leaseOf reads the token for key from the headers of r; with an error comes the
// status to answer.
func leaseOf(r *http.Request, key string) (holdfast.Token, int, error) {
	for _, name := range []string{KeyHeader, TokenHeader, OwnerHeader} {
		if r.Header.Get(name) == "" {
			return 0, http.StatusPreconditionRequired, fmt.Errorf("this needs the lock on %q; the header %s is missing", key, name)
		}
	}
	if got := r.Header.Get(KeyHeader); got != key {
		return 0, http.StatusBadRequest, fmt.Errorf("this needs the lock on %q, not on %q", key, got)
	}
	token, err := strconv.ParseInt(r.Header.Get(TokenHeader), 10, 64)
	if err != nil || token <= 0 {
		return 0, http.StatusBadRequest, fmt.Errorf("%s: %q is not a token, a number above 0", TokenHeader, r.Header.Get(TokenHeader))
	}
	return holdfast.Token(token), 0, nil
}
