package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// suffixes are the endings of the three files that hold the locks. SQLite needs all of them to be from one
// set.
var suffixes = [...]string{"", "-wal", "-shm"}

// fileSet identifies the files of one path.
type fileSet [len(suffixes)]os.FileInfo // nil: missing

// inUse holds the files that connections of this process have open, by path. It is global, because all
// connections of a process share one -shm in SQLite.
var inUse struct {
	mu   sync.Mutex // guards the fields below
	sets map[string]*openSet
}

type openSet struct {
	fileSet
	connections int // including those left open because their files were replaced
}

// statFiles returns the files that path names now. A file that cannot be examined counts as replaced.
func statFiles(path string) (found fileSet) {
	found[0], path = lookUp(path)
	for i, end := range suffixes[1:] {
		found[1+i], _ = os.Stat(path + end)
	}
	return found
}

// lookUp returns the file that path names, and its own path. For a symbolic link that is the target, beside
// which SQLite keeps the other files. It examines no name twice, because it runs before each statement.
func lookUp(path string) (info os.FileInfo, target string) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, path
	}
	if info.Mode()&os.ModeSymlink == 0 {
		return info, path
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	info, _ = os.Stat(path)
	return info, path
}

// followLink returns the target if path is a symbolic link, otherwise path.
func followLink(path string) string {
	_, target := lookUp(path)
	return target
}

// firstReplaced returns the suffix of a file that was replaced since s. While a connection is open, all three
// files exist.
func (s fileSet) firstReplaced(now fileSet) (end string, yes bool) {
	for i, was := range s {
		if was == nil || now[i] == nil || !os.SameFile(was, now[i]) {
			return suffixes[i], true
		}
	}
	return "", false
}

// checkFiles returns an error if path no longer names the files that connections of this process have open. A
// process that opens path now would not see their locks.
func checkFiles(path string) error {
	inUse.mu.Lock()
	s := inUse.sets[path]
	inUse.mu.Unlock()
	if s == nil {
		return nil
	}
	if end, yes := s.firstReplaced(statFiles(path)); yes { // s is never modified
		return errReplaced(path + end)
	}
	return nil
}

func errReplaced(name string) error {
	return driverkit.PermanentError{Err: fmt.Errorf("%w: %s was removed or replaced while this program had it open, and other programs may take the same "+
		"locks in another one; start this program again, and remove no file of locks", driver.ErrConfig, name)}
}

// fileGuard opens connections that run no statement once the files of their path were replaced.
type fileGuard struct {
	sqldriver.Connector
	path string
	nap  func(time.Duration)
}

// Connect implements sqldriver.Connector.
func (k fileGuard) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if err := checkFiles(k.path); err != nil {
		return nil, err
	}
	opened, err := persistentConnector{k.Connector}.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn := opened.(fileConn)
	if _, err := conn.ExecContext(ctx, "PRAGMA schema_version", nil); err != nil { // creates the other two files
		conn.Close()
		return nil, err
	}
	found := statFiles(k.path)
	inUse.mu.Lock()
	defer inUse.mu.Unlock()
	s := inUse.sets[k.path]
	if s == nil { // so no connection of this process has an older -shm
		s = &openSet{fileSet: found}
		if inUse.sets == nil {
			inUse.sets = make(map[string]*openSet)
		}
		inUse.sets[k.path] = s
	}
	s.connections++
	if end, yes := s.firstReplaced(found); yes {
		return nil, errReplaced(k.path + end)
	}
	return &keptConn{fileConn: conn, path: k.path}, nil
}

// Driver implements sqldriver.Connector.
func (k fileGuard) Driver() sqldriver.Driver { return nonBlocking{k.Connector.Driver(), k.nap} }

// nonBlocking tells package sqllock that no statement on these connections blocks: sourceName sets no
// busy_timeout.
type nonBlocking struct {
	sqldriver.Driver
	nap func(time.Duration)
}

// Nap sleeps for less than a millisecond.
func (i nonBlocking) Nap(d time.Duration) { i.nap(d) }

// fileConn has the methods of a connection of the SQLite driver.
type fileConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.Validator
}

// keptConn is a connection of a fileGuard.
type keptConn struct {
	fileConn
	path string
}

// ResetSession implements sqldriver.SessionResetter. The pool calls it before each use but the first. After
// ErrBadConn the pool calls Connect, which returns the reason.
func (c *keptConn) ResetSession(ctx context.Context) error {
	if checkFiles(c.path) != nil {
		return sqldriver.ErrBadConn
	}
	return c.fileConn.ResetSession(ctx)
}

// Close implements sqldriver.Conn. If the files were replaced, it leaves the connection open until the process
// ends: SQLite would copy pages of the old -wal over pages of a file that others write to.
func (c *keptConn) Close() error {
	if checkFiles(c.path) != nil {
		return nil
	}
	err := c.fileConn.Close()
	inUse.mu.Lock()
	defer inUse.mu.Unlock()
	if s := inUse.sets[c.path]; s != nil {
		if s.connections--; s.connections == 0 {
			delete(inUse.sets, c.path)
		}
	}
	return err
}

// persistentConnector opens connections that never remove -wal and -shm when they close. SQLite removes both in
// the last process that closes the file. But a process loses its SQLite locks when it opens and closes the file
// directly, for example to copy it. Another process then believes that it is the last.
type persistentConnector struct{ sqldriver.Connector }

// Connect implements sqldriver.Connector.
func (p persistentConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := p.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.(sqlite.FileControl).FileControlPersistWAL("main", 1); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
