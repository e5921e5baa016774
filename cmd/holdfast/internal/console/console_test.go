package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/memory"
)

// testConsole is a console that listens, over locks in memory.
type testConsole struct {
	*Server
	t      testing.TB
	client *holdfast.Client
	addr   string
	lease  *holdfast.Lease // lease of "job"
	taken  []force.Record

	refused chan string // addresses of wrong tokens
	stop    context.CancelFunc
	ended   chan error
}

func startConsole(t testing.TB, allowForce bool, change func(*Server)) *testConsole {
	t.Helper()
	client, err := holdfast.New(memory.New(3), &holdfast.Options{Holder: holdfast.Holder{Host: "web-1", PID: 7, Program: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	c := &testConsole{t: t, client: client, ended: make(chan error, 1), refused: make(chan string, 100)}
	if c.lease, err = client.Acquire(t.Context(), "job", nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	source := live.New(client, nil)
	looking := make(chan struct{})
	go func() { source.Run(ctx); close(looking) }()
	opts := Options{
		Source: source, Hosts: []string{"console.example"}, Taken: func(r force.Record) { c.taken = append(c.taken, r) },
		Diagnose: func(context.Context) ([]holdfast.Finding, error) {
			return []holdfast.Finding{{Check: "all", Verdict: "ok"}}, nil
		},
	}
	if allowForce {
		opts.Force = func(ctx context.Context, st holdfast.Status, reason string) (force.Record, error) {
			return force.Release(ctx, client, st, reason)
		}
	}
	opts.Refused = func(address string) { c.refused <- address }
	c.Server = New(opts)
	c.pause = time.Millisecond
	if change != nil {
		change(c.Server)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	go func() { c.ended <- c.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		<-looking
		http.DefaultClient.CloseIdleConnections()
		client.Close()
	})
	return c
}

// ask sends a request with headers "Name: value" and returns the status and the body.
func (c *testConsole) ask(method, path, body string, headers ...string) (int, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.addr+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.Header.Get("Content-Security-Policy") != policy {
		c.t.Errorf("%s %s: no policy", method, path)
	}
	return resp.StatusCode, string(text)
}

func TestForeignHostNameIsRejected(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	for host, want := range map[string]int{
		c.addr: 200, "localhost": 200, "LOCALHOST:99": 200, "127.0.0.1": 200, "[::1]:7788": 200, "10.0.0.7:80": 200, "console.example": 200,
		"console.example.": 200, "evil.example": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example:80": 421, "console.example.evil": 421,
	} {
		for _, path := range []string{"/", "/console.js", "/doctor"} {
			if got, _ := c.ask("GET", path, "", "Host: "+host); got != want {
				t.Errorf("%s of %s: %d, want %d", path, host, got, want)
			}
		}
	}
}

// forceRequest returns a valid request to force-release the lock "job".
func (c *testConsole) forceRequest() (body string, headers []string) {
	return fmt.Sprintf(`{"name":"job","token":"%d","reason":"why"}`, c.lease.Token()), []string{
		"Content-Type: application/json", "Origin: http://" + c.addr, "Sec-Fetch-Site: same-origin", "Authorization: Bearer " + c.Token(),
	}
}

// The test changes one thing of a valid request at a time.
func TestForceRejectsForeignPageOrToken(t *testing.T) {
	t.Parallel()
	c := startConsole(t, true, nil)
	body, headers := c.forceRequest()
	for _, row := range []struct {
		name, method, body string
		headers            []string
		want               int
	}{
		{"by GET", "GET", body, headers, 405},
		{"by PUT", "PUT", body, headers, 405},
		{"from another site", "POST", body, append(headers, "Sec-Fetch-Site: cross-site"), 403},
		{"from a sister domain", "POST", body, append(headers, "Sec-Fetch-Site: same-site"), 403},
		{"by the address bar", "POST", body, append(headers, "Sec-Fetch-Site: none"), 403},
		{"by an old browser from another site", "POST", body, append(headers, "Sec-Fetch-Site: ", "Origin: http://evil.example"), 403},
		{"by an old browser without an origin", "POST", body, append(headers, "Sec-Fetch-Site: ", "Origin: null"), 403},
		{"by no browser", "POST", body, append(headers, "Sec-Fetch-Site: ", "Origin: "), 403},
		{"as a form", "POST", body, append(headers, "Content-Type: application/x-www-form-urlencoded"), 403},
		{"as plain text", "POST", body, append(headers, "Content-Type: text/plain"), 403},
		{"without a token", "POST", body, append(headers, "Authorization: "), 403},
		{"with another token", "POST", body, append(headers, "Authorization: Bearer "+strings.ToLower(c.Token())), 403},
		{"without a reason", "POST", strings.Replace(body, "why", " ", 1), headers, 400},
		{"of no lock", "POST", strings.Replace(body, "job", "", 1), headers, 400},
		{"of a lock that nobody holds", "POST", strings.Replace(body, "job", "free", 1), headers, 409},
		{"from another holder", "POST", `{"name":"job","token":"7","reason":"why"}`, headers, 409},
		{"from a holder without a token", "POST", `{"name":"job","token":"0","reason":"why"}`, headers, 409},
		{"with junk", "POST", "\x00{{{", headers, 400},
		{"with nothing", "POST", "", headers, 400},
		{"with too much", "POST", `{"name":"job","reason":"` + strings.Repeat("x", maxBody) + `"}`, headers, 400},
	} {
		if got, text := c.ask(row.method, "/force", row.body, row.headers...); got != row.want {
			t.Errorf("%s: %d, want %d: %s", row.name, got, row.want, text)
		}
	}
	if err := c.lease.Check(t.Context()); err != nil || len(c.taken) != 0 {
		t.Fatalf("the lock was released: %v, %v", err, c.taken)
	}
	if got, text := c.ask("POST", "/force", body, headers...); got != 200 {
		t.Fatalf("the valid request: %d: %s", got, text)
	}
	if len(c.taken) != 1 || c.taken[0].Reason != "why" || c.taken[0].Lock.Name != "job" {
		t.Errorf("record %+v", c.taken)
	}
	if c.lease.Check(t.Context()) == nil {
		t.Error("the lock was not released")
	}
}

// Each guess is reported with its address, and only a few are handled at a time, whether the browser waits for
// the answer or not.
func TestWrongTokensAreReportedAndDelayed(t *testing.T) {
	t.Parallel()
	c := startConsole(t, true, func(s *Server) { s.pause = time.Hour })
	body, headers := c.forceRequest()
	wrong := append(slices.Clone(headers[:len(headers)-1]), "Authorization: Bearer "+strings.ToLower(c.Token()))
	for range guesses {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /force HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n%s\r\n\r\n%s", c.addr, len(body), strings.Join(wrong, "\r\n"), body)
		if got := <-c.refused; got != conn.LocalAddr().String() {
			t.Errorf("a wrong token from %s is logged for %s", conn.LocalAddr(), got)
		}
		conn.Close()
	}
	if got, text := c.ask("POST", "/force", body, wrong...); got != 429 {
		t.Errorf("one more guess: %d, want 429: %s", got, text)
	}
	if got, text := c.ask("POST", "/force", body, headers...); got != 200 {
		t.Errorf("the correct token beside wrong ones: %d, want 200: %s", got, text)
	}
	c.stop() // ends the waits
	<-c.ended
}

func TestReadOnlyConsoleRejectsForceRelease(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	body, headers := c.forceRequest()
	if got, text := c.ask("POST", "/force", body, headers...); got != 403 || !strings.Contains(text, "--allow-force") {
		t.Errorf("%d: %s", got, text)
	}
	if c.Token() != "" {
		t.Error("the page contains a token")
	}
}

func TestInvalidRequestIsRejected(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	for path, want := range map[string]int{
		"/events?sort=junk": 400, "/events?page=-1": 400, "/events?page=x": 400, "/events?page=99999999999999999999": 400,
		"/events?filter=" + strings.Repeat("x", maxFilter+1): 400, "/nothing": 404, "/../../etc/passwd": 404, "/index.html/": 404, "/page/": 404,
		"/events?filter=" + strings.Repeat("x", 64<<10): 431,
	} {
		if want == 431 { // the server answers before the handler
			resp, err := http.Get("http://" + c.addr + path)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body.Close(); resp.StatusCode != want {
				t.Errorf("%d, want %d", resp.StatusCode, want)
			}
			continue
		}
		if got, _ := c.ask("GET", path, ""); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	for _, junk := range []string{"\x16\x03\x01\x02\x00\x01", "GET / HTTP/9\r\n\r\n", "GET\r\n\r\n", strings.Repeat("A", 100<<10)} {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, junk) // ignore an error: the console may close early
		conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, conn) // wait until the server closes it
		conn.Close()
	}
	if got, _ := c.ask("GET", "/", ""); got != 200 {
		t.Errorf("after invalid requests: %d", got)
	}
}

// readScenes reads the stream of events. next returns the next one.
func (c *testConsole) readScenes(query string) (next func() (scene, error), end func()) {
	c.t.Helper()
	resp, err := http.Get("http://" + c.addr + "/events?" + query)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		c.t.Fatalf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	lines := bufio.NewReader(resp.Body)
	return func() (s scene, err error) {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return s, err
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				return s, json.Unmarshal([]byte(data), &s)
			}
		}
	}, func() { resp.Body.Close() }
}

func TestStreamShowsChanges(t *testing.T) {
	t.Parallel()
	c := startConsole(t, true, func(s *Server) { s.every = 10 * time.Millisecond })
	next, end := c.readScenes("lock=job")
	defer end()
	for {
		s, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Rows) == 1 && s.Lock != nil && s.Lock.IsHeld {
			if s.Rows[0].Name != "job" || s.Lock.Token != fmt.Sprint(c.lease.Token()) || len(s.Lock.Votes) != 3 || !s.Force || len(s.Nodes) != 3 {
				t.Errorf("%+v, %+v", s, s.Lock)
			}
			break
		}
	}
	if err := c.lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for s, err := next(); s.Lock == nil || s.Lock.IsHeld; s, err = next() {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestStreamSendsOnlyRequestedPage(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, func(s *Server) { s.every = 10 * time.Millisecond })
	for i := range 2*pageRows + 1 {
		if _, err := c.client.Acquire(t.Context(), fmt.Sprintf("row-%03d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		query, first string
		rows, page   int
	}{
		{"filter=row-&sort=name", "row-000", pageRows, 0},
		{"filter=row-&sort=name&page=2", "row-100", 1, 2},
		{"filter=row-&sort=name&page=99", "row-100", 1, 2},
		{"filter=row-05&sort=name", "row-050", 10, 0},
	} {
		next, end := c.readScenes(row.query)
		for {
			s, err := next()
			if err != nil {
				t.Fatal(err)
			}
			if s.Locks < 2*pageRows+2 {
				continue // not all locks were read yet
			}
			if len(s.Rows) != row.rows || s.Rows[0].Name != row.first || s.Page != row.page {
				t.Errorf("%s: %d rows from %s, page %d", row.query, len(s.Rows), s.Rows[0].Name, s.Page)
			}
			break
		}
		end()
	}
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	for range streams {
		_, end := c.readScenes("")
		defer end()
	}
	if got, text := c.ask("GET", "/events", ""); got != 503 || !strings.Contains(text, "close some") {
		t.Errorf("%d: %s", got, text)
	}
	if got, _ := c.ask("GET", "/", ""); got != 200 {
		t.Errorf("the page: %d", got)
	}
}

func TestBrowserThatDoesNotReadIsDropped(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, func(s *Server) { s.every, s.slow = time.Microsecond, 50*time.Millisecond })
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := fixture.New(t)
	r.Eventually("the stream has begun", func() bool { return len(c.seats) > 0 })
	r.Eventually("it has ended", func() bool { return len(c.seats) == 0 })
}

// The test opens far more connections than the console has places: some send nothing, others send requests and
// never read the answers.
func TestIdleConnectionsLeaveRoomForViewers(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	for i := range 4 * connections {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			conn.SetWriteDeadline(time.Now().Add(time.Second)) // the console may have closed it
			io.WriteString(conn, strings.Repeat("GET /console.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 100))
		}
	}
	if got, _ := c.ask("GET", "/", ""); got != 200 {
		t.Errorf("beside idle connections: %d, want 200", got)
	}
}

func TestOtherOriginsAreRejected(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	for site, want := range map[string]int{"same-origin": 200, "none": 200, "same-site": 403, "cross-site": 403} {
		for _, path := range []string{"/", "/doctor"} {
			if got, _ := c.ask("GET", path, "", "Sec-Fetch-Site: "+site); got != want {
				t.Errorf("%s from %s: %d, want %d", path, site, got, want)
			}
		}
		if want == 403 {
			r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+c.addr+"/events", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Sec-Fetch-Site", site)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body.Close(); resp.StatusCode != want { // a stream's body does not end
				t.Errorf("/events from %s: %d, want %d", site, resp.StatusCode, want)
			}
		}
	}
}

func TestConsoleEndsItsStreams(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	next, end := c.readScenes("")
	defer end()
	if _, err := next(); err != nil {
		t.Fatal(err)
	}
	c.stop()
	for {
		if _, err := next(); err != nil {
			break
		}
	}
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
}

// The page also obeys the policy, which forbids inline scripts and styles.
func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	t.Parallel()
	c := startConsole(t, false, nil)
	forbidden := regexp.MustCompile(`(?i)<style|style=|\son[a-z]+=|<script(>| [^>]*>[^<])|javascript:|https?://|(inner|outer|insertAdjacent|set)HTML|srcdoc|` +
		`document\.write|DOMParser|createContextualFragment|eval\(|Function\(|@import|url\(`)
	err := fs.WalkDir(files, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		for _, hit := range forbidden.FindAllString(string(text), -1) {
			if hit != "http://" || !strings.HasSuffix(path, ".svg") { // the namespace of SVG
				t.Errorf("%s has %q", path, hit)
			}
		}
		if name := strings.TrimPrefix(path, "page/"); name != "index.html" {
			if got, _ := c.ask("GET", "/"+name, ""); got != 200 {
				t.Errorf("%s: %d", name, got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, page := c.ask("GET", "/", "")
	for _, want := range []string{`<html lang="en">`, `<script src="console.js" defer></script>`, `aria-live="polite"`, `scope="col"`, `data-level="early"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, `data-level="fine"`) {
		t.Error("the page reports that all is well before it has data")
	}
}

func TestViewersShareOneDiagnosis(t *testing.T) {
	t.Parallel()
	asked := 0
	c := startConsole(t, false, func(s *Server) {
		s.opts.Diagnose = func(context.Context) ([]holdfast.Finding, error) {
			asked++
			return []holdfast.Finding{{Check: "memory", Verdict: "fault", Fix: "more"}}, nil
		}
	})
	for range 5 {
		if got, text := c.ask("GET", "/doctor", ""); got != 200 || !strings.Contains(text, `"fix":"more"`) {
			t.Errorf("%d: %s", got, text)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// FuzzRequest: any request gets an answer and force-releases no lock.
func FuzzRequest(f *testing.F) {
	c := startConsole(f, true, nil)
	body, headers := c.forceRequest()
	f.Add("GET", "/events?filter=a&sort=name&page=1&lock=job", "", "")
	f.Add("GET", "/doctor", "", "Sec-Fetch-Site: none")
	f.Add("POST", "/force", body, strings.Join(headers[:3], "\n"))
	f.Add("GET", "/console.js", "", "Range: bytes=0-1")
	f.Fuzz(func(t *testing.T, method, target, body, headers string) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.addr+"/", strings.NewReader(body))
		if err != nil {
			return // Go's client cannot send such a request
		}
		if r.URL, err = r.URL.Parse(target); err != nil {
			return
		}
		for h := range strings.SplitSeq(headers, "\n") {
			if name, value, ok := strings.Cut(h, ": "); ok && name != "Authorization" {
				r.Header.Set(name, value)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		stop() // end a stream after one scene
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r.WithContext(ctx))
		if w.Code < 200 || w.Code > 599 || len(c.taken) > 0 {
			t.Errorf("%d, %d locks taken", w.Code, len(c.taken))
		}
		select {
		case <-c.refused:
		default:
		}
	})
}
