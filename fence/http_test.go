package fence_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memory"
)

func byPath(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }

// sendRequest sends one request with the given headers through a new handler of g.
func sendRequest(g *fence.Guard, method string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/ledger", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	g.Handler(byPath, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})).ServeHTTP(w, r)
	return w
}

func leaseHeaders(key, token, owner string) []string {
	return []string{fence.KeyHeader, key, fence.TokenHeader, token, fence.OwnerHeader, owner}
}

func TestHandlerAnswersByToken(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, method string
		headers      []string
		want         int
	}{
		{"FreshWritePasses", http.MethodPut, leaseHeaders("ledger", "8", "b"), http.StatusNoContent},
		{"StaleWriteIsRefused", http.MethodPut, leaseHeaders("ledger", "6", "a"), http.StatusPreconditionFailed},
		{"StaleReadIsRefused", http.MethodGet, leaseHeaders("ledger", "6", "a"), http.StatusPreconditionFailed},
		{"ReadNeedsNoLease", http.MethodGet, nil, http.StatusNoContent},
		{"WriteNeedsALease", http.MethodPost, nil, http.StatusPreconditionRequired},
		{"WriteNeedsAnID", http.MethodPost, []string{fence.KeyHeader, "ledger", fence.TokenHeader, "8"}, http.StatusPreconditionRequired},
		{"LeaseOfAnotherKeyIsRefused", http.MethodPut, leaseHeaders("other", "9", "b"), http.StatusBadRequest},
		{"TokenMustBeANumber", http.MethodPut, leaseHeaders("ledger", "nine", "b"), http.StatusBadRequest},
		{"NoTokenIsRefused", http.MethodPut, leaseHeaders("ledger", "0", "b"), http.StatusBadRequest},
		{"TokenMustBePositive", http.MethodPut, leaseHeaders("ledger", "-9", "b"), http.StatusBadRequest},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var g fence.Guard
			g.Claim("ledger", 7, "seen")
			w := sendRequest(&g, row.method, row.headers...)
			if w.Code != row.want {
				t.Errorf("status %d (%s), want %d", w.Code, strings.TrimSpace(w.Body.String()), row.want)
			}
			if w.Code == http.StatusPreconditionFailed && w.Header().Get(fence.TokenHeader) != "7" {
				t.Errorf("highest token in the answer is %q, want 7", w.Header().Get(fence.TokenHeader))
			}
		})
	}
}

func TestHandlerReadRaisesHighestToken(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		var g fence.Guard
		if w := sendRequest(&g, method, leaseHeaders("ledger", "8", "b")...); w.Code != http.StatusNoContent {
			t.Errorf("%s: status %d, want 204", method, w.Code)
		}
		if w := sendRequest(&g, http.MethodPut, leaseHeaders("ledger", "7", "a")...); w.Code != http.StatusPreconditionFailed {
			t.Errorf("a write with an older token than a %s: status %d, want 412", method, w.Code)
		}
		if w := sendRequest(&g, method, leaseHeaders("ledger", "7", "a")...); w.Code != http.StatusPreconditionFailed {
			t.Errorf("a stale %s: status %d, want 412", method, w.Code)
		}
		if w := sendRequest(&g, method); w.Code != http.StatusNoContent {
			t.Errorf("a %s without a lease: status %d, want 204", method, w.Code)
		}
	}
}

func TestHandlerReadsSetHeader(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(memory.New(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	held, err := client.Acquire(t.Context(), "ledger", nil)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	fence.SetHeader(h, held)
	var g fence.Guard
	w := sendRequest(&g, http.MethodPut, leaseHeaders(h.Get(fence.KeyHeader), h.Get(fence.TokenHeader), h.Get(fence.OwnerHeader))...)
	if token, owner := g.Highest("ledger"); w.Code != http.StatusNoContent || token != held.Token() || owner != held.Owner() {
		t.Errorf("status %d, recorded %d of %q, want the lease's %d of %q", w.Code, token, owner, held.Token(), held.Owner())
	}
}
