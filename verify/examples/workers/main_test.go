package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestFileHasOneWorkerAtATime(t *testing.T) {
	t.Parallel()
	url, inbox, done := "redis://"+redistest.Start(t, nil).Addr(), t.TempDir(), t.TempDir()
	const files = 60
	for i := range files {
		writeFile(t, filepath.Join(inbox, fmt.Sprint(i)), fmt.Sprintf("text %d", i))
	}
	var mu sync.Mutex
	busy := make(map[string]bool)
	all := make(chan string, files)
	work := func(ctx context.Context, lease *holdfast.Lease, name string) error {
		mu.Lock()
		if busy[name] {
			t.Errorf("two workers process file %s", name)
		}
		busy[name] = true
		mu.Unlock()
		_, missing := os.Stat(filepath.Join(inbox, name))
		err := compressFile(ctx, filepath.Join(inbox, name), filepath.Join(done, name+".gz"), lease.Token())
		mu.Lock()
		busy[name] = false
		mu.Unlock()
		if missing == nil && err == nil {
			all <- name
		}
		return err
	}
	for range 3 {
		examples.Start(t, func(ctx context.Context) error { return run(ctx, url, inbox, time.Minute, work) })
	}
	for range files {
		examples.Soon(t, "a file is compressed", all)
	}
	if rest, err := os.ReadDir(inbox); err != nil || len(rest) != 0 {
		t.Errorf("%d files remain, %v", len(rest), err)
	}
	packed, err := os.ReadDir(done)
	if err != nil || len(packed) != files {
		t.Errorf("%d compressed files, %v; want %d", len(packed), err, files)
	}
	if text := unpackFile(t, filepath.Join(done, "7.gz")); text != "text 7" {
		t.Errorf("file 7 has %q", text)
	}
}

// worker works until its context ends or it is told to finish.
type worker struct {
	began  chan string
	finish chan struct{}
}

func (w *worker) work(ctx context.Context, _ *holdfast.Lease, name string) error {
	w.began <- name
	select {
	case <-w.finish:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestShutdownWaitsForStartedWork(t *testing.T) {
	t.Parallel()
	url, inbox := "redis://"+redistest.Start(t, nil).Addr(), t.TempDir()
	writeFile(t, filepath.Join(inbox, "a"), "text")
	w := &worker{make(chan string), make(chan struct{})}
	stop, ended := examples.Start(t, func(ctx context.Context) error { return run(ctx, url, inbox, time.Minute, w.work) })
	examples.Soon(t, "the work begins", w.began)
	stop()
	select {
	case err := <-ended:
		t.Fatalf("run returned %v before its worker", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(w.finish)
	if err := examples.Soon(t, "run returns", ended); err != nil {
		t.Error(err)
	}
	examples.Free(t, url, "inbox/a")
}

func TestShutdownStopsWorkAfterGracePeriod(t *testing.T) {
	t.Parallel()
	url, inbox := "redis://"+redistest.Start(t, nil).Addr(), t.TempDir()
	writeFile(t, filepath.Join(inbox, "a"), "text")
	w := &worker{make(chan string), make(chan struct{})}
	stop, ended := examples.Start(t, func(ctx context.Context) error { return run(ctx, url, inbox, 50*time.Millisecond, w.work) })
	examples.Soon(t, "the work begins", w.began)
	stop()
	if err := examples.Soon(t, "run returns", ended); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("run returned %v, want one that matches DeadlineExceeded", err)
	}
	examples.Free(t, url, "inbox/a")
}

func TestLostLeaseStopsCompression(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "text")
	ctx, lose := context.WithCancelCause(t.Context())
	lose(holdfast.ErrLost)
	if err := compressFile(ctx, filepath.Join(dir, "a"), filepath.Join(dir, "a.gz"), 7); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("compress returned %v, want ErrLost", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v; want only the first", len(files), err)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func unpackFile(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
