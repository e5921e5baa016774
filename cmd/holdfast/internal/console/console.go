// Package console shows the live view of a backend as a web page.
//
// There is no login: anybody who reaches the address can read. So the console listens on this machine only, by
// default, and a page of another site gets nothing: the Host header must be an address or a configured name
// (DNS rebinding), no other origin may read an answer, and the page loads nothing from elsewhere. A
// force-release needs permission at the start, and a POST from the page itself with the token that was printed
// at the start.
package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/pace"
)

//go:embed page
var files embed.FS

// Options of a Server.
type Options struct {
	Source *live.Source
	// Force force-releases the lock of the holder in st; nil: the console is read-only.
	Force func(ctx context.Context, st holdfast.Status, reason string) (force.Record, error)
	// Taken receives the record of each force-released lock.
	Taken func(force.Record)
	// Refused receives the address of each browser that sent a wrong token.
	Refused func(address string)
	// Diagnose runs the doctor on the backend.
	Diagnose func(ctx context.Context) ([]holdfast.Finding, error)
	// Hosts are further names of the console, beside localhost and addresses.
	Hosts []string
}

// Bounds of what browsers can use.
const (
	connections = 256 // a new one replaces the one idle for longest, if idle for patience
	patience    = 100 * time.Millisecond
	writeBuffer = 64 << 10 // bytes of answers that the kernel buffers per connection
	streams     = 32
	pageRows    = 50
	maxFilter   = 200 // bytes
	maxBody     = 8 << 10
	guesses     = 4               // wrong tokens reported per guessPause
	guessPause  = time.Second     // delay before the answer to a wrong token
	doctorKept  = 5 * time.Second // time for which all viewers share one diagnosis
)

// Server is the console. Use New.
type Server struct {
	opts  Options
	token string
	mux   *http.ServeMux
	seats chan struct{} // places for streams
	every time.Duration // interval of a stream's events
	slow  time.Duration // time for a browser to read one

	guesses chan struct{} // places for requests with a wrong token
	pause   time.Duration // delay before the answer to a wrong token
	over    chan struct{} // closed when the console ends

	diagnosis struct {
		sync.Mutex // held during a diagnosis, so that only one runs
		made       time.Time
		body       []byte
	}
}

// New returns a console that does not listen yet: see Serve.
func New(opts Options) *Server {
	s := &Server{opts: opts, mux: http.NewServeMux(), seats: make(chan struct{}, streams), every: time.Second, slow: pace.BrowserTime()}
	s.guesses, s.pause, s.over = make(chan struct{}, guesses), guessPause, make(chan struct{})
	if opts.Force != nil {
		s.token = rand.Text()
	}
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // cannot fail: embedded
	}
	s.mux.Handle("GET /{$}", http.FileServerFS(page))
	for _, name := range []string{"console.css", "console.js", "icon.svg"} {
		s.mux.Handle("GET /"+name, http.FileServerFS(page))
	}
	s.mux.HandleFunc("GET /events", s.serveEvents)
	s.mux.HandleFunc("GET /doctor", s.serveDoctor)
	s.mux.HandleFunc("POST /force", s.serveForce)
	return s
}

// Token returns the token that a browser needs for a force-release, or "" if the console is read-only.
func (s *Server) Token() string { return s.token }

// Serve answers browsers on l until ctx ends. Then it ends their streams and returns within a few seconds.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, MaxHeaderBytes: 16 << 10, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: pace.BrowserTime(), IdleTimeout: time.Minute,
		WriteTimeout: s.slow,                     // events and doctor take longer and set it again before they write
		ErrorLog:     log.New(io.Discard, "", 0), // drop errors of browsers that send junk
		BaseContext:  func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(newLimitListener(l, connections, patience)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		close(s.over)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), pace.LastPagesTime())
	defer cancel()
	if server.Shutdown(last) != nil {
		server.Close()
	}
	<-ended
	return nil
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		http.Error(w, "Pages of other sites get nothing from the console.", http.StatusForbidden)
		return
	}
	if !s.isOwnHost(r.Host) {
		http.Error(w, "The console is not called by this name. Use its address, or start it with --host.", http.StatusMisdirectedRequest)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// isOwnHost reports whether host is a name of this console. With any other name, another site may have pointed
// its own name at this machine (DNS rebinding).
func (s *Server) isOwnHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	return name == "localhost" || slices.Contains(s.opts.Hosts, name)
}

// writeError answers with an error for the page to show.
func writeError(w http.ResponseWriter, code int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprintf(format, args...)}) // ignore an error: the browser has gone
}

// serveDoctor answers with the findings of a diagnosis.
func (s *Server) serveDoctor(w http.ResponseWriter, r *http.Request) {
	d := &s.diagnosis
	d.Lock()
	defer d.Unlock()
	if time.Since(d.made) > doctorKept {
		ctx, cancel := context.WithTimeout(r.Context(), pace.DoctorTime())
		defer cancel()
		findings, err := s.opts.Diagnose(ctx)
		if r.Context().Err() != nil {
			return
		}
		if err != nil {
			http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.slow))
			writeError(w, http.StatusBadGateway, "%v", err)
			return
		}
		if d.body, err = json.Marshal(findings); err != nil {
			writeError(w, http.StatusInternalServerError, "%v", err)
			return
		}
		d.made = time.Now()
	}
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.slow))
	w.Header().Set("Content-Type", "application/json")
	w.Write(d.body) // ignore an error: the browser has gone
}

// forceOrder is a request for a force-release.
type forceOrder struct {
	Name   string         `json:"name"`
	Token  holdfast.Token `json:"token,string"` // of the holder; a string, because JavaScript cannot hold all int64s
	Reason string         `json:"reason"`
}

// serveForce handles a force-release.
func (s *Server) serveForce(w http.ResponseWriter, r *http.Request) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" || !isSameOrigin(r) {
		writeError(w, http.StatusForbidden, "only the console's own page can do that")
		return
	}
	if s.opts.Force == nil {
		writeError(w, http.StatusForbidden, "this console only reads; start it with --allow-force")
		return
	}
	if !s.checkToken(w, r) {
		return
	}
	var o forceOrder
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&o); err != nil {
		writeError(w, http.StatusBadRequest, "the request cannot be read: %v", err)
		return
	}
	if strings.TrimSpace(o.Reason) == "" || o.Name == "" {
		writeError(w, http.StatusBadRequest, "give the name of the lock and a reason")
		return
	}
	d := s.opts.Source.Detail(r.Context(), o.Name)
	switch st := d.Row.Status; {
	case d.Err != nil && !st.Held:
		writeError(w, http.StatusBadGateway, "%v", d.Err)
	case !st.Held:
		writeError(w, http.StatusConflict, "nobody holds %q", o.Name)
	case st.Token != o.Token:
		writeError(w, http.StatusConflict, "%q is held by %s now, token %d; nothing was done", o.Name, view.Holder(st), st.Token)
	default:
		s.forceRelease(w, r, st, o.Reason)
	}
}

// checkToken reports whether r has the token, and answers r if not. It reports a few wrong tokens at a time
// and answers them late, and answers the rest at once, so that guesses do not keep out a browser with the
// right token. The token has 128 random bits, so the number of guesses does not matter.
func (s *Server) checkToken(w http.ResponseWriter, r *http.Request) bool {
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(given), []byte(s.token)) == 1 {
		return true
	}
	select {
	case s.guesses <- struct{}{}:
		defer func() { <-s.guesses }()
	default:
		writeError(w, http.StatusTooManyRequests, "too many wrong tokens were given; try again in a second")
		return false
	}
	s.opts.Refused(r.RemoteAddr)
	select {
	case <-time.After(s.pause):
	case <-s.over:
	}
	writeError(w, http.StatusForbidden, "that is not the token that was printed when the console started")
	return false
}

func (s *Server) forceRelease(w http.ResponseWriter, r *http.Request, st holdfast.Status, reason string) {
	record, err := s.opts.Force(r.Context(), st, reason)
	if err != nil {
		writeError(w, http.StatusConflict, "%v", err)
		return
	}
	s.opts.Taken(record)
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(record) // ignore an error: the browser has gone
}

// isSameOrigin reports whether a page of this server has sent r.
func isSameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host != "" && origin.Host == r.Host
}
