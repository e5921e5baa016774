package fence_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// A write runs only with three valid headers, and is answered with 200, 400, 412 or 428.
func FuzzHandlerHeaders(f *testing.F) {
	for _, token := range []string{"64", "0", "-1", "+5", "", " 7", "9223372036854775807", "9223372036854775808", "1e3", "٣"} {
		f.Add("PUT", "/report", token, "lease")
		f.Add("GET", "/report", token, "lease")
	}
	f.Add("PUT", "/other", "64", "lease")
	f.Add("PUT", "/report", "64", "")
	f.Fuzz(func(t *testing.T, method, key, token, owner string) {
		ran := false
		var guard fence.Guard
		h := guard.Handler(
			func(*http.Request) string { return "/report" },
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }),
		)
		r := httptest.NewRequest(http.MethodPut, "/report", nil)
		r.Method = method
		for name, value := range map[string]string{fence.KeyHeader: key, fence.TokenHeader: token, fence.OwnerHeader: owner} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusPreconditionRequired, http.StatusPreconditionFailed:
		default:
			t.Errorf("status %d", w.Code)
		}
		if ran != (w.Code == http.StatusOK) {
			t.Errorf("status %d, write ran %v", w.Code, ran)
		}
		n, err := strconv.ParseInt(token, 10, 64)
		good := err == nil && n > 0 && key == "/report" && owner != ""
		free := token == "" && (method == http.MethodGet || method == http.MethodHead)
		if ran != (good || free) {
			t.Errorf("%s of %q with token %q, owner %q: ran %v", method, key, token, owner, ran)
		}
	})
}
