package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
)

// stage has nodes, clients on them, and a console that shows them.
type stage struct {
	servers []*redisproc.Server
	clients []*holdfast.Client
	console *exec.Cmd
	url     string
	token   string       // for force-releases
	said    outputBuffer // stderr of the console
}

// newStage starts the nodes. close ends everything.
func newStage(ctx context.Context, nodes int) (s *stage, err error) {
	s = &stage{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for range nodes {
		server, err := redisproc.Start(ctx, nil)
		if err != nil {
			return s, err
		}
		s.servers = append(s.servers, server)
	}
	return s, nil
}

// buildProgram returns a folder with the program. The caller of main or of the tests removes it.
var buildProgram = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "holdfast-console-"); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "github.com/holdfast-go/holdfast/cmd/holdfast").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return dir, err
})

// startConsole starts the console from this repository's program and reads its address.
func (s *stage) startConsole(ctx context.Context, backend string) error {
	dir, err := buildProgram()
	if err != nil {
		return err
	}
	listen := cmp.Or(strings.Trim(strings.TrimPrefix(s.url, "http://"), "/"), "127.0.0.1:0") // the same address as before
	s.token = ""
	s.console = exec.CommandContext(ctx, filepath.Join(dir, "holdfast"), "console", "--listen", listen, "--allow-force")
	s.console.Env = append(os.Environ(), "HOLDFAST_BACKEND="+backend)
	s.console.Stderr = io.MultiWriter(os.Stderr, &s.said)
	out, err := s.console.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.console.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for s.token == "" && lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "console at "); ok {
			s.url = url
		}
		if token, ok := strings.CutPrefix(lines.Text(), "token for taking locks away: "); ok {
			s.token = token
		}
	}
	if s.token == "" || s.url == "" {
		return errors.New("the console has not said where it is")
	}
	return nil
}

// backendURL returns the URL of the nodes. New nodes vote at once.
func (s *stage) backendURL() string {
	if len(s.servers) == 1 {
		return "redis://" + s.servers[0].Addr()
	}
	var addrs []string
	for _, server := range s.servers {
		addrs = append(addrs, server.Addr())
	}
	return "redlock://" + strings.Join(addrs, ",") + "?quarantine=off"
}

func (s *stage) close() {
	for _, c := range s.clients {
		c.Close()
	}
	if s.console != nil && s.console.Process != nil {
		s.console.Process.Kill() // ignore an error: it may have ended
		s.console.Wait()
	}
	for _, server := range s.servers {
		server.Stop() // ignore an error: a temporary folder may stay
	}
}

// newClient returns a client with holder h.
func (s *stage) newClient(ctx context.Context, h holdfast.Holder) (*holdfast.Client, error) {
	drv, err := redis.Open(ctx, s.backendURL(), nil)
	if err != nil {
		return nil, err
	}
	c, err := holdfast.New(drv, &holdfast.Options{Holder: h})
	if err == nil {
		s.clients = append(s.clients, c)
	}
	return c, err
}

// holdLocks makes a client hold locks, with a note if it is not empty, until the stage is closed.
func (s *stage) holdLocks(ctx context.Context, h holdfast.Holder, note string, names ...string) error {
	c, err := s.newClient(ctx, h)
	if err != nil {
		return err
	}
	for _, name := range names {
		//holdfastvet:ignore close closes the client
		if _, err := c.Acquire(ctx, name, &holdfast.AcquireOptions{Note: note, TTL: 30 * time.Second}); err != nil {
			return err
		}
	}
	return nil
}

// waitForLock makes a client wait for a lock until the stage is closed.
func (s *stage) waitForLock(ctx context.Context, h holdfast.Holder, name string) error {
	c, err := s.newClient(ctx, h)
	if err != nil {
		return err
	}
	go c.Acquire(ctx, name, nil) // Close ends the wait
	for {
		st, err := c.Inspect(ctx, name)
		if err != nil || st.Waiters > 0 && strings.Contains(fmt.Sprint(s.queuedHosts(ctx, c, name)), h.Host) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *stage) queuedHosts(ctx context.Context, c *holdfast.Client, name string) (hosts []string) {
	waiters, _ := c.Queue(ctx, name, 20)
	for _, w := range waiters {
		hosts = append(hosts, w.Holder.Host)
	}
	return hosts
}

// runOnNode sends a command to one node.
func (s *stage) runOnNode(node int, args ...string) error {
	_, err := s.servers[node].Do(args...)
	return err
}

var errNoBrowser = errors.New("no chromium: tools/deps installs it on Debian")

// findBrowser finds Chromium.
func findBrowser() (string, error) {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoBrowser
}

// newTab opens a browser with its own profile. cancel closes it.
func newTab(ctx context.Context) (tab context.Context, cancel func(), err error) {
	path, err := findBrowser()
	if err != nil {
		return nil, nil, err
	}
	flags := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("lang", "en"))
	all, end := chromedp.NewExecAllocator(ctx, flags...)
	tab, shut := chromedp.NewContext(all)
	if err := chromedp.Do(tab); err != nil {
		shut()
		end()
		return nil, nil, err
	}
	return tab, func() { shut(); end() }, nil
}

// outputBuffer collects the output of a program. It is safe for concurrent use.
type outputBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (w *outputBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *outputBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
