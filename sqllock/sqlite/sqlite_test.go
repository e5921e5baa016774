package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// within bounds what is certain to come.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience())
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, url string, opts *sqlite.Options) *sqlite.Driver {
	t.Helper()
	d, err := sqlite.Open(within(t), url, opts)
	return fixture.Closed(fixture.New(t), d, err)
}

// take takes the lock "k" and gives it back.
func take(t *testing.T, d driver.Driver) {
	t.Helper()
	r := fixture.New(t)
	r.Must(d.Release(within(t), r.Grant(d, "k", fixture.Long), 0))
}

func TestBadURLsAreRefused(t *testing.T) {
	t.Parallel()
	fixture.BadURLs(t, func(ctx context.Context, url string) (*sqlite.Driver, error) { return sqlite.Open(ctx, url, nil) }, map[string]string{
		"/tmp/locks.db":                        "sqlite:///",
		"sqlite://locks.db":                    "three slashes",
		"sqlite:locks.db":                      "no whole path",
		"sqlite:./locks.db":                    "no whole path",
		"sqlite::memory:":                      "no whole path",
		"sqlite:///tmp/":                       "is a folder",
		"sqlite:///tmp/a%0Ab":                  "control character",
		"sqlite:///tmp/a%zz":                   "%25",
		"sqlite:///tmp/a?mode=ro":              `"mode" is not known`,
		"sqlite:///tmp/a?synchronous=off":      "synchronous=full",
		"sqlite:///tmp/a?_pragma=locking_mode": "not known",
	})
}

// TestAnOddPathIsOneFile, by each form of the URL.
func TestAnOddPathIsOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const escaped = "a%20b%25c%3Fd%23e%26.db"
	d := open(t, "sqlite://"+dir+"/"+escaped, nil)
	g := fixture.New(t).Grant(d, "k", fixture.Long)
	if _, err := os.Stat(filepath.Join(dir, "a b%c?d#e&.db")); err != nil {
		t.Error(err)
	}
	for _, form := range []string{"sqlite:" + dir + "/", "sqlite://" + dir + "/./", "sqlite:///" + dir + "/"} {
		other := open(t, form+escaped+"?synchronous=full", nil)
		if _, err := other.Acquire(within(t), driver.Request{Key: "k", TTL: time.Second, NoWait: true}); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: Acquire() = %v, want ErrHeld", form, err)
		}
	}
	if err := d.Release(within(t), g, 0); err != nil {
		t.Error(err)
	}
}

// TestAFileThatCannotBeUsedIsNamedWithItsMend.
func TestAFileThatCannotBeUsedIsNamedWithItsMend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database at all ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir + "/none/locks.db": "mkdir -p " + dir + "/none",
		garbage + "/locks.db":  "no folder",
		dir:                    "no plain file",
		garbage:                "name another file",
	} {
		_, err := sqlite.Open(within(t), "sqlite://"+path, nil)
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open of %s = %v, want ErrConfig and %q", path, err, want)
		}
		d := open(t, "sqlite://"+path, &sqlite.Options{NoCheck: true})
		if found := d.Diagnose(within(t), 0); found[len(found)-1].Verdict != driver.VerdictFault && found[0].Verdict != driver.VerdictFault {
			t.Errorf("Diagnose of %s = %+v, want a fault", path, found)
		}
	}
}

// TestWhoOnlyLooksMakesNoFile, and sees what others make meanwhile.
func TestWhoOnlyLooksMakesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := "sqlite://" + dir + "/locks.db"
	looker := open(t, url, &sqlite.Options{ReadOnly: true})
	held := func() bool {
		st, err := looker.Inspect(within(t), "k")
		if err != nil {
			t.Error(err)
		}
		return st.Held
	}
	if held() {
		t.Error("a file that is not there has a lock")
	}
	for _, f := range looker.Diagnose(within(t), 0) {
		if f.Bad() {
			t.Errorf("%+v", f)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a look has made %v, %v", left, err)
	}
	d := open(t, url, nil)
	r := fixture.New(t)
	g := r.Grant(d, "k", fixture.Long)
	r.Eventually("the lock is seen", held)
	r.Must(d.Release(within(t), g, 0))
}

// TestAFileThatWasReplacedGivesNoLock: who opens that path now has another lock service.
func TestAFileThatWasReplacedGivesNoLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := open(t, "sqlite://"+path, nil)
	r := fixture.New(t)
	g := r.Grant(d, "k", fixture.Long)
	for _, end := range []string{"", "-wal", "-shm"} {
		r.Must(os.Remove(path + end))
	}
	take(t, open(t, "sqlite://"+path, nil))
	_, err := d.Acquire(within(t), driver.Request{Key: "other", TTL: time.Second, NoWait: true})
	if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "removed or replaced") {
		t.Errorf("Acquire() = %v, want ErrConfig as the file was replaced", err)
	}
	if err := d.Renew(within(t), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrConfig) {
		t.Errorf("Renew() = %v, want ErrConfig", err)
	}
}

// TestAFullDiskLosesNothing: what is held stays, nothing is taken for granted, and all goes on when there is room.
func TestAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := open(t, "sqlite://"+path, nil)
	r := fixture.New(t)
	before := r.Grant(d, "before", fixture.Long)
	limit := func(pages string) { // of each connection, so that those of the driver are made anew
		t.Helper()
		r.Must(sqlite.Limit(d, pages))
	}
	limit("page_count")
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		_, err = d.Acquire(within(t), driver.Request{Key: fmt.Sprint(strings.Repeat("x", 400), i), TTL: fixture.Long, NoWait: true})
	}
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("Acquire() on a full disk = %v, want that it is full", err)
	}
	if err := d.Check(within(t), before); err != nil {
		t.Errorf("Check() of what was held before = %v", err)
	}
	limit("1000000")
	take(t, d)
	r.Must(d.Renew(within(t), []driver.Grant{before})[0].Err)
	r.Must(d.Release(within(t), before, 0))
	db, err := sql.Open("sqlite", "file:"+path)
	r.Must(err)
	defer db.Close()
	var verdict string
	if r.Must(db.QueryRowContext(within(t), "PRAGMA integrity_check").Scan(&verdict)); verdict != "ok" {
		t.Errorf("the file is %s", verdict)
	}
}

// TestAWriterThatTakesItsTimeIsWaitedFor: another program has the file for longer than SQLite itself waits.
func TestAWriterThatTakesItsTimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := open(t, "sqlite://"+path, nil)
	r := fixture.New(t)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
	r.Must(err)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	r.Must(err)
	_, err = d.Acquire(within(t), driver.Request{Key: "k", TTL: time.Second, NoWait: true})
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrConfig) {
		t.Errorf("Acquire() while another writes = %v, want ErrUnavailable", err)
	}
	over := time.AfterFunc(time.Second, func() { tx.Rollback() })
	defer over.Stop()
	take(t, d)
}
