package fence

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/holdfast-go/holdfast"
)

// The headers of a request that name its lease.
const (
	KeyHeader   = "Holdfast-Key"
	TokenHeader = "Holdfast-Token"
	OwnerHeader = "Holdfast-Owner"
)

// SetHeader sets the headers of a request to lease.
func SetHeader(h http.Header, lease *holdfast.Lease) {
	h.Set(KeyHeader, lease.Key())
	h.Set(TokenHeader, strconv.FormatInt(int64(lease.Token()), 10))
	h.Set(OwnerHeader, lease.Owner())
}

// Handler passes a request to next if it carries a lease that is not stale. key returns the lock that guards
// the resource of the request, or "" if none does. The request must name exactly that key: the lease of
// another lock does not count.
//
// A write runs inside Guard.Do: the next write to the same key waits until next has returned, so next should
// read a slow body first or bound it. GET and HEAD need no lease. If they carry one, they claim its token and
// do not block other requests.
//
// Handler trusts the headers. A sender can name a token that no lease has, and then the real holders get 412
// until Forget. So authenticate callers in a handler around this one, and pass on only requests of callers
// that may hold the lock. Guard.MaxAhead bounds the harm.
//
// Rejections: 412 for a stale token or one beyond MaxAhead, with the highest token seen in Holdfast-Token; 428 if the headers are
// missing; 400 if they cannot be parsed.
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

// leaseOf reads the token for key from the headers of r. With an error it returns the status of the response.
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
