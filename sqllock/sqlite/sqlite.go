// Package sqlite keeps locks in a file of SQLite, for the processes of one machine. It needs no server and no cgo. It
// opens the file and creates its tables. Package sqllock has the driver, and describes what it promises.
//
// The file must be on a disk of the machine itself. Machines that share a file over a network do not see one another's
// locks on it, so Open rejects a file on NFS or the like. Two names of one file are one lock service only if they lead
// to the same path: give all programs the same path.
//
// The file is in WAL mode, so a read blocks no other process. Two more files, with -wal and -shm at the end, are beside
// it and stay. The three belong together: if one of them is removed or replaced, a driver takes no lock any more, and
// its leases end at their next renewal. If a process that has locks also reads one of the files by other means, as a
// backup or a second SQLite library does, that process loses SQLite's own locks on the file (see howtocorrupt.html of
// SQLite); read it in another process. Committed changes survive the end of any process at any point. They are not
// synced at each commit: a crash of the machine, which ends all holders as well, may undo the newest grants. Their
// tokens are not used again, because tokens follow the clock. A lock that must outlast a crash of the machine, such as
// one that a process acquired for others, needs synchronous=full.
//
// On Linux each process has a Unix datagram socket beside the file. Its name is the name of the file, -holdfast- and an
// id. A client that releases a lock, or takes it away by force, sends a datagram to it, so that the next waiter, or the
// holder, reads the lock at once. Waiters also poll twice a second, and every 5 to 50 ms if there is no socket or if a
// hand-over came without a datagram in the last half minute. Close removes the socket; others remove the socket of a
// killed process.
//
// A process that is suspended in the middle of a write, for example by SIGSTOP, blocks all others until it continues or
// ends. A write takes well below a millisecond. No context ends a call that the disk blocks.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/sqllock"
)

const (
	// connections is the size of the pool: one connection for claims and releases, which take turns, and one
	// for renewals.
	connections = 2
	// maxWAL bounds the size of -wal after a checkpoint. With any bound, the last connection to close leaves
	// an empty -wal.
	maxWAL = 4 << 20
	// little is the free disk space below which a doctor warns.
	little = 16 << 20
)

// Options configure a Driver. The zero value works.
type Options struct {
	// ReadOnly creates no file. If the file does not exist, nobody holds a lock.
	ReadOnly bool
	// NoCheck opens nothing, so that a driver can be opened even for a file that cannot be used: for Limits and Diagnose.
	NoCheck bool
}

// Driver keeps locks in one file. It is safe for concurrent use.
type Driver struct {
	*sqllock.Driver
	db   *sql.DB
	path string
	bell *bell // nil: not needed, or not possible
	// alert is called when a lock of this driver was force-released; nil: not set.
	alert atomic.Pointer[func(owner, why string)]
}

// Open returns a driver for the file that url names, and creates the file and its tables if they are missing; opts
// may be nil. The folder must exist. Close closes the file.
//
//	sqlite:///var/lib/holdfast/locks.db
//	sqlite:/var/lib/holdfast/locks.db                    the same
//	sqlite:///var/lib/holdfast/locks.db?synchronous=full synced at each commit
//
// In the path, write % as %25, ? as %3F and a blank as %20. Errors: ErrInvalid for a URL that cannot be parsed;
// ErrConfig for a file that cannot be used, such as in a missing folder or on a network file system; ErrAuth if this
// user may not write.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	return openFile(ctx, url, opts, openSocket, napFor)
}

// openFile does what Open does. hang creates the socket of the driver's bell, and nap pauses.
func openFile(ctx context.Context, url string, opts *Options, hang opener, nap func(time.Duration)) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	path, full, err := parseURL(url)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	if !opts.NoCheck {
		if err := checkUsable(path); err != nil {
			return nil, fmt.Errorf("sqlite: %w", err)
		}
	}
	d := &Driver{path: path}
	if !opts.ReadOnly && !opts.NoCheck {
		createFile(path) // ignore an error: SQLite reports it
	}
	if err := d.connectFile(full, opts.ReadOnly || opts.NoCheck, nap); err != nil {
		return nil, fmt.Errorf("sqlite: %w: %w", driver.ErrInvalid, err)
	}
	makes := !opts.ReadOnly && !opts.NoCheck
	d.Driver, err = sqllock.New(ctx, d.db, sqllock.SQLite, &sqllock.Options{NoCheck: makes || opts.NoCheck, Node: path})
	if err == nil && makes {
		ctx, cancel := context.WithTimeout(ctx, pace.MakeTablesTime())
		defer cancel()
		if err = d.Migrate(ctx); err != nil {
			err = fmt.Errorf("sqlite: %w", errors.Unwrap(err)) // drop the word migrate: the caller asked to open
		}
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	if makes {
		d.openDoorbell(hang) // without a bell, waiters poll
	}
	return d, nil
}

// connectFile prepares the pools; the first use opens the file. With leave, a missing file is not created, and
// a database in memory stands in for it.
func (d *Driver) connectFile(full, leave bool, nap func(time.Duration)) error {
	file, err := sqlite.NewConnector(sourceName(d.path, full))
	if err != nil {
		return err
	}
	if leave {
		file, err = newOptionalFile(d.path, persistentConnector{file})
		if err != nil {
			return err
		}
	} else {
		file = fileGuard{file, d.path, nap}
	}
	d.db = sql.OpenDB(file)
	d.db.SetMaxOpenConns(connections)
	if leave {
		d.db.SetConnMaxLifetime(time.Second)
	}
	return nil
}

// optionalFile connects to a file if it exists, and otherwise to empty tables in memory.
type optionalFile struct {
	sqldriver.Connector
	path, schema string
	empty        sqldriver.Connector
}

func newOptionalFile(path string, file sqldriver.Connector) (sqldriver.Connector, error) {
	empty, err := sqlite.NewConnector("file::memory:")
	if err != nil {
		return nil, err
	}
	schema, err := sqllock.Schema(sqllock.SQLite, nil)
	return optionalFile{Connector: file, path: path, schema: schema, empty: empty}, err
}

// Connect implements sqldriver.Connector.
func (s optionalFile) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if _, err := os.Stat(s.path); err == nil {
		return s.Connector.Connect(ctx)
	}
	conn, err := s.empty.Connect(ctx)
	if err == nil {
		_, err = conn.(sqldriver.ExecerContext).ExecContext(ctx, s.schema, nil)
	}
	return conn, err
}

// parseURL parses a URL.
func parseURL(text string) (path string, full bool, err error) {
	invalid := func(format string, args ...any) (string, bool, error) {
		return "", false, fmt.Errorf("%w: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	rest, ok := strings.CutPrefix(text, "sqlite:")
	if !ok {
		return invalid("the URL does not begin with sqlite:; an example: sqlite:///var/lib/holdfast/locks.db")
	}
	if behind, ok := strings.CutPrefix(rest, "//"); ok {
		if rest = behind; !strings.HasPrefix(rest, "/") {
			return invalid("a file has no host; write three slashes before its path, as in sqlite:///var/lib/holdfast/locks.db")
		}
	}
	rest, query, _ := strings.Cut(rest, "?")
	if path, err = url.PathUnescape(rest); err != nil {
		return invalid("the path of the URL cannot be read; write %% as %%25 and ? as %%3F")
	}
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/")
	}
	switch {
	case strings.ContainsFunc(path, unicode.IsControl), strings.ContainsAny(rest, "#"):
		return invalid("the path of the URL has a control character or a #; write the latter as %%23")
	case !filepath.IsAbs(path):
		return invalid("%q is not an absolute path; write it from the root, as in sqlite:///var/lib/holdfast/locks.db: "+
			"in two folders the same name is two files, whose locks do not exclude one another", path)
	case strings.HasSuffix(rest, "/"):
		return invalid("%q is a folder; name a file in it", path)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return invalid("what follows the ? cannot be read; write %% as %%25 and & as %%26")
	}
	for name, all := range values {
		if name != "synchronous" || len(all) > 1 || !slices.Contains([]string{"full", "normal"}, all[0]) {
			near := ""
			if driverkit.NearestWord(name, []string{"synchronous"}) == "" {
				near = fmt.Sprintf("parameter %q is not known; ", name)
			}
			return invalid("%sthere is synchronous=normal, which is the default, and synchronous=full", near)
		}
		full = all[0] == "full"
	}
	return filepath.Clean(path), full, nil
}

// sourceName returns the data source name for the SQLite driver. SQLite must not wait for other writers:
// package sqllock does.
func sourceName(path string, full bool) string {
	sync := "normal"
	if full {
		sync = "full"
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
	return fmt.Sprintf("%s?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=journal_size_limit(%d)&_pragma=synchronous(%s)", u.String(), maxWAL, sync)
}

// configError returns an error that the user must fix.
func configError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{driver.ErrConfig}, args...)...)
}

// checkUsable returns an error if the file cannot be used. It does not open the file: closing it would drop
// the SQLite locks that this process has on it.
func checkUsable(path string) error {
	folder := filepath.Dir(path)
	switch info, err := os.Stat(folder); {
	case os.IsNotExist(err):
		return configError("there is no folder %s; make it: mkdir -p %s", folder, folder)
	case err != nil:
		return fmt.Errorf("%w: %w; let this user look into the folder", driver.ErrAuth, err)
	case !info.IsDir():
		return configError("%s is not a folder; name a file in one", folder)
	}
	switch info, err := os.Stat(path); {
	case err == nil && !info.Mode().IsRegular():
		return configError("%s is not a plain file; name another", path)
	case err != nil && !os.IsNotExist(err):
		return fmt.Errorf("%w: %w; let this user look at the file", driver.ErrAuth, err)
	}
	if kind := networkOf(folder); kind != "" {
		return configError("%s is on %s, over which machines do not see one another's locks on a file; name a file on a disk of this machine, "+
			"or take a server for locks of several machines", folder, kind)
	}
	return nil
}

// Renew implements driver.Driver. If the files were replaced, the leases are lost: others may have the locks
// already.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := d.Driver.Renew(ctx, grants)
	for i, r := range out {
		if r.Err == nil || errors.Is(r.Err, driver.ErrLost) {
			continue
		}
		if err := checkFiles(d.path); err != nil {
			out[i].Err = &driver.LostError{Reason: err.Error()}
		}
	}
	return out
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
	if d.Driver != nil {
		d.Driver.Close()
	}
	if d.bell != nil {
		d.bell.socket.Close()
	}
	return d.db.Close()
}

// Diagnose implements driver.Doctor. It does not create a file.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	notes := driverkit.Findings{Node: d.path}
	if err := checkUsable(d.path); err != nil {
		notes.Fault("reach", err)
		return notes.Found
	}
	_, err := os.Stat(d.path)
	if err != nil {
		notes.OK("reach", "there is no file yet; the first lock makes it")
	} else if notes.Found = d.Driver.Diagnose(ctx, ttl); checkFiles(d.path) != nil {
		notes.Fault("files", checkFiles(d.path))
	}
	if err == nil {
		checkPermissions(&notes, d.path)
		checkOrphans(&notes)
	}
	reportDoorbell(&notes, d.path)
	checkSpace(&notes, filepath.Dir(d.path))
	return notes.Found
}

// Modes of a new file. SQLite copies them to the other two files. A user with read access could lock -shm and
// block all others.
const mode, groupMode = 0o600, 0o660

// createFile creates the file unless it exists. The group may write if the folder is setgid.
func createFile(path string) {
	perm := fs.FileMode(mode)
	if info, err := os.Stat(filepath.Dir(path)); err == nil && info.Mode()&fs.ModeSetgid != 0 {
		perm = groupMode
	}
	// The file gets its name after it was closed: closing it drops the SQLite locks that this process has on
	// it.
	temp, err := os.OpenFile(fmt.Sprintf("%s.%s.new", path, rand.Text()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return
	}
	temp.Close()
	os.Link(temp.Name(), path)
	os.Remove(temp.Name())
}

// checkPermissions reports other users who may take locks away or block all others.
func checkPermissions(notes *driverkit.Findings, path string) {
	var all fs.FileMode
	for _, info := range statFiles(path) {
		if info != nil {
			all |= info.Mode().Perm()
		}
	}
	files := path + " " + path + "-*"
	switch {
	case runtime.GOOS == "windows" || all&0o007 == 0:
		notes.OK("files", "mode %04o: who may write to the file and its folder may lock", all)
	case all&0o002 != 0:
		notes.Add("files", driver.VerdictWarning, fmt.Sprintf("its mode is %04o: every user of this machine can take locks away", all), "chmod o-rwx "+files)
	default:
		notes.Add("files", driver.VerdictWarning, fmt.Sprintf("its mode is %04o: every user of this machine can stop all locks, by a lock on the file "+
			"that ends in -shm", all), "chmod o-rwx "+files)
	}
}

// checkOrphans reports processes that have removed or replaced files of these locks open.
func checkOrphans(notes *driverkit.Findings) {
	if all := orphanIDs(notes.Node); len(all) > 0 {
		notes.Add("files", driver.VerdictFault, fmt.Sprintf("a file of these locks was removed or replaced while process %s had it open: "+
			"it and the others do not see one another's locks", strings.Join(all, ", ")), "end it, start it again, and remove no file of locks")
	}
}

// checkSpace checks the disk of the folder.
func checkSpace(notes *driverkit.Findings, folder string) {
	free, kind := diskSpace(folder)
	switch {
	case kind != "":
		notes.Add("disk", driver.VerdictWarning, "it is on "+kind+", which may be shared by machines that do not see one another's locks",
			"name a file on a disk of this machine")
	case free < little:
		notes.Add("disk", driver.VerdictWarning, fmt.Sprintf("%d MB are free: on a full disk no lock is taken, renewed or released", free>>20), "make room on it")
	case layerOf(folder) != "":
		notes.OK("disk", "on %s, %d MB free: a process in another container does not see these locks, unless the file is on a volume that both mount",
			layerOf(folder), free>>20)
	default:
		notes.OK("disk", "on this machine, %d MB free", free>>20)
	}
}
