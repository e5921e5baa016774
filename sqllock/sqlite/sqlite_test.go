package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// leavesFilesVariable marks a process whose tests leave files open.
const leavesFilesVariable = "SQLITE_TEST_LEAVES_FILES"

func TestMain(m *testing.M) {
	if os.Getenv(leavesFilesVariable) != "" {
		os.Exit(m.Run())
	}
	os.Exit(leaktest.Run(m))
}

// boundedContext returns a context that bounds the wait for an expected event.
func boundedContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), fixture.MaxWait())
	t.Cleanup(cancel)
	return ctx
}

func openDriver(t *testing.T, url string, opts *sqlite.Options) *sqlite.Driver {
	t.Helper()
	d, err := sqlite.Open(boundedContext(t), url, opts)
	return fixture.CloseAtEnd(fixture.New(t), d, err)
}

// takeOnce acquires and releases the lock "k".
func takeOnce(t *testing.T, d driver.Driver) {
	t.Helper()
	r := fixture.New(t)
	r.NoError(d.Release(boundedContext(t), r.AcquireGrant(d, "k", fixture.LongTTL), 0))
}

func TestBadURLsAreRejected(t *testing.T) {
	t.Parallel()
	fixture.CheckBadURLs(t, func(ctx context.Context, url string) (*sqlite.Driver, error) { return sqlite.Open(ctx, url, nil) }, map[string]string{
		"/tmp/locks.db":                        "sqlite:///",
		"sqlite://locks.db":                    "three slashes",
		"sqlite:locks.db":                      "not an absolute path",
		"sqlite:./locks.db":                    "not an absolute path",
		"sqlite::memory:":                      "not an absolute path",
		"sqlite:///tmp/":                       "is a folder",
		"sqlite:///tmp/a%0Ab":                  "control character",
		"sqlite:///tmp/a%zz":                   "%25",
		"sqlite:///tmp/a?mode=ro":              `"mode" is not known`,
		"sqlite:///tmp/a?synchronous=off":      "synchronous=full",
		"sqlite:///tmp/a?_pragma=locking_mode": "not known",
	})
}

// Each form of the URL leads to the same file.
func TestURLFormsOpenSameFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const escaped = "a%20b%25c%3Fd%23e%26.db"
	d := openDriver(t, "sqlite://"+dir+"/"+escaped, nil)
	g := fixture.New(t).AcquireGrant(d, "k", fixture.LongTTL)
	if _, err := os.Stat(filepath.Join(dir, "a b%c?d#e&.db")); err != nil {
		t.Error(err)
	}
	for _, form := range []string{"sqlite:" + dir + "/", "sqlite://" + dir + "/./", "sqlite:///" + dir + "/"} {
		other := openDriver(t, form+escaped+"?synchronous=full", nil)
		if _, err := other.Acquire(boundedContext(t), driver.Request{Key: "k", TTL: 5 * time.Second, NoWait: true}); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: Acquire() = %v, want ErrHeld", form, err)
		}
	}
	if err := d.Release(boundedContext(t), g, 0); err != nil {
		t.Error(err)
	}
}

func TestUnusableFileErrorNamesFix(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database at all ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir + "/none/locks.db": "mkdir -p " + dir + "/none",
		garbage + "/locks.db":  "not a folder",
		dir:                    "not a plain file",
		garbage:                "name another file",
	} {
		_, err := sqlite.Open(boundedContext(t), "sqlite://"+path, nil)
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open of %s = %v, want ErrConfig and %q", path, err, want)
		}
		d := openDriver(t, "sqlite://"+path, &sqlite.Options{NoCheck: true})
		if found := d.Diagnose(boundedContext(t), 0); found[len(found)-1].Verdict != driver.VerdictFault && found[0].Verdict != driver.VerdictFault {
			t.Errorf("Diagnose of %s = %+v, want a fault", path, found)
		}
	}
}

// A read-only driver sees files that other processes create later.
func TestReadOnlyDriverDoesNotCreateFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := "sqlite://" + dir + "/locks.db"
	looker := openDriver(t, url, &sqlite.Options{ReadOnly: true})
	held := func() bool {
		st, err := looker.Inspect(boundedContext(t), "k")
		if err != nil {
			t.Error(err)
		}
		return st.Held
	}
	if held() {
		t.Error("a missing file contains a lock")
	}
	for _, f := range looker.Diagnose(boundedContext(t), 0) {
		if f.Bad() {
			t.Errorf("%+v", f)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the read created %v, %v", left, err)
	}
	d := openDriver(t, url, nil)
	r := fixture.New(t)
	g := r.AcquireGrant(d, "k", fixture.LongTTL)
	r.Eventually("the lock is seen", held)
	r.NoError(d.Release(boundedContext(t), g, 0))
}

// The files are replaced under three drivers of this process: one holds a lock, one waits, one was opened and
// has done nothing. The test runs in its own process, because connections to replaced files stay open.
func TestReplacedFilesGrantNoLock(t *testing.T) {
	t.Parallel()
	if os.Getenv(leavesFilesVariable) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), leavesFilesVariable+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	remove := func(ends ...string) func(path string) error {
		return func(path string) (err error) {
			for _, end := range ends {
				err = errors.Join(err, os.Remove(path+end))
			}
			return err
		}
	}
	for name, replace := range map[string]func(path string) error{
		"all removed":     remove("", "-wal", "-shm"),
		"file removed":    remove(""),
		"wal removed":     remove("-wal"),
		"shm removed":     remove("-shm"),
		"both removed":    remove("-wal", "-shm"),
		"file moved away": func(path string) error { return os.Rename(path, path+".old") },
		"folder moved":    func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
		"another moved in": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
		},
		"wal of a link": remove("-wal"),
		"wal moved in": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path+"-wal"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "folder", "locks.db")
			r := fixture.New(t)
			r.NoError(os.Mkdir(filepath.Dir(path), 0o700))
			url := "sqlite://" + path
			if strings.HasSuffix(name, "of a link") {
				url += ".link"
				r.NoError(os.Symlink("locks.db", path+".link"))
			}
			holder, waiter, idle := openDriver(t, url, nil), openDriver(t, url, nil), openDriver(t, url, nil)
			g := r.AcquireGrant(holder, "k", fixture.LongTTL)
			obstacle := make(chan error, 9)
			waited := fixture.AcquireAsync(boundedContext(t), waiter, driver.Request{Key: "k", TTL: fixture.LongTTL, OnObstacle: func(err error) { obstacle <- err }})
			<-obstacle
			r.NoError(replace(path))
			if err := <-waited; !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "removed or replaced") {
				t.Errorf("Acquire() of the waiter = %v, want ErrConfig for the replaced file", err)
			}
			for _, d := range []*sqlite.Driver{holder, waiter, idle} {
				_, err := d.Acquire(boundedContext(t), driver.Request{Key: "other", TTL: fixture.LongTTL})
				if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "removed or replaced") {
					t.Errorf("Acquire() = %v, want ErrConfig as a file was replaced", err)
				}
			}
			err := holder.Renew(boundedContext(t), []driver.Grant{g})[0].Err
			if !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "removed or replaced") {
				t.Errorf("Renew() = %v, want ErrLost as a file was replaced", err)
			}
			if _, err := sqlite.Open(boundedContext(t), url, nil); !errors.Is(err, driver.ErrConfig) {
				t.Errorf("Open() by the process with the old files open = %v, want ErrConfig", err)
			}
		})
	}
}

// The doctor runs in a process that does not have the removed files open.
func TestDoctorNamesProcessesWithRemovedFiles(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells who has which file open")
	}
	path := filepath.Join(t.TempDir(), "locks.db")
	r := fixture.New(t)
	r.NoError(os.WriteFile(path, nil, 0o600))
	looker := openDriver(t, "sqlite://"+path, &sqlite.Options{NoCheck: true})
	found := func() (faults []string) {
		for _, f := range looker.Diagnose(boundedContext(t), 0) {
			if f.Check == "files" && f.Verdict == driver.VerdictFault {
				faults = append(faults, f.Text)
			}
		}
		return faults
	}
	shm, err := os.OpenFile(path+"-shm", os.O_CREATE|os.O_RDWR, 0o600)
	r.NoError(err)
	defer shm.Close()
	if faults := found(); len(faults) > 0 {
		t.Errorf("Diagnose() = %q, want no fault of the files", faults)
	}
	r.NoError(os.Remove(path + "-shm"))
	if faults := found(); len(faults) != 1 || !strings.Contains(faults[0], fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("Diagnose() = %q, want that this process has a file that was removed", faults)
	}
}

// Held locks stay, no new lock is granted, and both end once there is space.
func TestLocksSurviveFullDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := openDriver(t, "sqlite://"+path, nil)
	r := fixture.New(t)
	before := r.AcquireGrant(d, "before", fixture.LongTTL)
	limit := func(pages string) { // set on each connection: the driver opens its connections again
		t.Helper()
		r.NoError(sqlite.Limit(d, pages))
	}
	limit("page_count")
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		_, err = d.Acquire(boundedContext(t), driver.Request{Key: fmt.Sprint(strings.Repeat("x", 400), i), TTL: fixture.LongTTL, NoWait: true})
	}
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("Acquire() on a full disk = %v, want a full-disk error", err)
	}
	if err := d.Check(boundedContext(t), before); err != nil {
		t.Errorf("Check() of the earlier lease = %v", err)
	}
	limit("1000000")
	takeOnce(t, d)
	r.NoError(d.Renew(boundedContext(t), []driver.Grant{before})[0].Err)
	r.NoError(d.Release(boundedContext(t), before, 0))
	db, err := sql.Open("sqlite", "file:"+path)
	r.NoError(err)
	defer db.Close()
	var verdict string
	if r.NoError(db.QueryRowContext(boundedContext(t), "PRAGMA integrity_check").Scan(&verdict)); verdict != "ok" {
		t.Errorf("the file is %s", verdict)
	}
}

// Another program keeps the file busy for longer than a request takes.
func TestAcquireWaitsForSlowWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := openDriver(t, "sqlite://"+path, nil)
	r := fixture.New(t)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
	r.NoError(err)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	r.NoError(err)
	_, err = d.Acquire(boundedContext(t), driver.Request{Key: "k", TTL: 5 * time.Second, NoWait: true})
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrConfig) {
		t.Errorf("Acquire() during another process's write = %v, want ErrUnavailable", err)
	}
	over := time.AfterFunc(time.Second, func() { tx.Rollback() })
	defer over.Stop()
	takeOnce(t, d)
}

// Another program writes most of the time. In virtual time it is certain which gaps are found.
func TestAcquireSucceedsBetweenWrites(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	const locks = 10
	synctest.Test(t, func(t *testing.T) {
		d, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, newBells().open)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		done := make(chan error, 1)
		go func() {
			for range locks {
				time.Sleep(4 * time.Millisecond) // over before the other program writes again
				g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Minute})
				if err == nil {
					err = d.Release(t.Context(), g, 0)
				}
				if err != nil {
					done <- err
				}
			}
			done <- nil
		}()
		for gaps := 0; ; gaps++ {
			tx, err := db.BeginTx(t.Context(), nil)
			for err != nil && strings.Contains(err.Error(), "locked") {
				time.Sleep(10 * time.Microsecond)
				tx, err = db.BeginTx(t.Context(), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(150 * time.Millisecond)
			tx.Rollback()
			time.Sleep(3 * time.Millisecond)
			select {
			case err := <-done:
				if gaps > 2*locks || err != nil {
					t.Errorf("%d locks were granted and released in %d gaps, %v", locks, gaps, err)
				}
				return
			default:
			}
		}
	})
}

// Without a wake-up, the waiters would find the free lock only by polling. In virtual time a hand-over takes no
// time, and a waiter polls twice a second.
func TestEachReleaseWakesNextWaiter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	synctest.Test(t, func(t *testing.T) {
		bells := newBells()
		type held struct {
			driver.Grant
			by *sqlite.Driver
			at time.Time
		}
		grants := make(chan held)
		for i := range 5 {
			d, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, bells.open)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			go func() {
				g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Hour})
				if err != nil {
					t.Errorf("waiter %d: %v", i, err)
				}
				grants <- held{g, d, time.Now()}
			}()
			time.Sleep(time.Second)
		}
		var released time.Time
		for i := range 5 {
			h := <-grants
			if waited := h.at.Sub(released); i > 0 && waited > 20*time.Millisecond {
				t.Errorf("hand-over %d took %v", i, waited)
			}
			time.Sleep(time.Second + 30*time.Millisecond) // between two polls
			released = time.Now()
			if err := h.by.Release(t.Context(), h.Grant, 0); err != nil {
				t.Error(err)
			}
		}
	})
}

// Another writer is not a fault of the file.
func TestDoctorWaitsForAnotherWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	synctest.Test(t, func(t *testing.T) {
		d, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, newBells().open)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		over := time.AfterFunc(time.Second, func() { tx.Rollback() })
		defer over.Stop()
		for _, f := range d.Diagnose(t.Context(), 0) {
			if f.Bad() && f.Check != "round-trip" {
				t.Errorf("%+v", f)
			}
		}
	})
}

// The group gets access if the folder is setgid. A user with read access could block all locks.
func TestNewFileIsPrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has other permissions")
	}
	for name, c := range map[string]struct{ folder, want os.FileMode }{"user": {0o777, 0o600}, "group": {0o777 | os.ModeSetgid, 0o660}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "locks.db")
			r := fixture.New(t)
			r.NoError(os.Chmod(dir, c.folder))
			plain, err := os.OpenFile(filepath.Join(t.TempDir(), "plain"), os.O_CREATE, c.want)
			r.NoError(err)
			defer plain.Close()
			info, err := plain.Stat()
			r.NoError(err)
			c.want = info.Mode().Perm() // the mode after umask
			d := openDriver(t, "sqlite://"+path, nil)
			takeOnce(t, d)
			files, err := os.ReadDir(dir)
			r.NoError(err)
			if len(files) != 4 { // three files and the driver's socket
				t.Errorf("directory contains %v", files)
			}
			for _, f := range files {
				info, err := f.Info()
				if r.NoError(err); info.Mode().Perm() != c.want {
					t.Errorf("mode of %s = %v, want %v", f.Name(), info.Mode(), c.want)
				}
			}
			warned := func() (text string) {
				for _, f := range d.Diagnose(boundedContext(t), 0) {
					if f.Check == "files" && f.Bad() {
						text = f.Text
					}
				}
				return text
			}
			if text := warned(); text != "" {
				t.Errorf("the doctor warns that %s", text)
			}
			r.NoError(os.Chmod(path+"-shm", 0o604))
			if text := warned(); !strings.Contains(text, "can stop all locks") {
				t.Errorf("the doctor reports %q for a file that others can read", text)
			}
			r.NoError(os.Chmod(path+"-shm", 0o606))
			if text := warned(); !strings.Contains(text, "take locks away") {
				t.Errorf("the doctor reports %q for a file that others can write", text)
			}
		})
	}
}

// 40 other programs write all the time, as slowly as on an overloaded machine. Each waits between its tries
// like a driver that acquires a lock.
func TestRenewalSucceedsAmongManyWriters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	const writers, ttl = 40, 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		d, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, newBells().open)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var crowd sync.WaitGroup
		defer crowd.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var writes atomic.Int64
		for range writers {
			crowd.Go(func() {
				for begun := time.Now(); ctx.Err() == nil; {
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						time.Sleep(min(time.Since(begun)/100, 5*time.Millisecond) + 50*time.Microsecond + rand.N(200*time.Microsecond))
						continue
					}
					writes.Add(1)
					time.Sleep(20 * time.Millisecond)
					tx.Rollback()
					time.Sleep(30 * time.Microsecond) // a client's own time between two writes
					begun = time.Now()
				}
			})
		}
		rounds := 12
		if testing.Short() {
			rounds = 3
		}
		for round := range rounds {
			time.Sleep(ttl / 3)
			before := writes.Load()
			// A client keeps a quarter of the remaining time for another try.
			within, done := context.WithTimeout(t.Context(), ttl*2/3*3/4)
			err := d.Renew(within, []driver.Grant{g})[0].Err
			done()
			t.Logf("renewal %d waited for %d writes", round, writes.Load()-before)
			if err != nil {
				t.Fatalf("renewal %d: %v", round, err)
			}
		}
	})
}

// The caller learns in time that the release is not confirmed, earlier if its context ends. The lock is free
// once the other program has written.
func TestReleaseContinuesBehindOtherWriter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ended bool
		limit func() time.Duration
	}{
		"with time":     {false, pace.ReleaseTime},
		"ended context": {true, pace.FinishTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "locks.db")
			synctest.Test(t, func(t *testing.T) {
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				bells := newBells()
				d, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, bells.open)
				must(err)
				defer d.Close()
				other, err := sqlite.OpenWith(t.Context(), "sqlite://"+path, bells.open)
				must(err)
				defer other.Close()
				g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Hour})
				must(err)
				db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
				must(err)
				defer db.Close()
				tx, err := db.BeginTx(t.Context(), nil)
				must(err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.ended {
					cancel()
				}
				begun := time.Now()
				if err := d.Release(ctx, g, 0); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, context.Canceled) != c.ended {
					t.Errorf("Release() during another process's write = %v, want it unconfirmed", err)
				}
				if took := time.Since(begun); took > c.limit()+2*pace.FinishTime() {
					t.Errorf("Release() took %v", took)
				}
				must(tx.Rollback())
				within, done := context.WithTimeout(t.Context(), time.Minute)
				defer done()
				_, err = other.Acquire(within, driver.Request{Key: "k", TTL: time.Hour})
				must(err)
			})
		})
	}
}
