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

// suffixes end the names of the files that keep the locks together: SQLite works with all three or with none.
var suffixes = [...]string{"", "-wal", "-shm"}

// fileSet identifies the files of one path.
type fileSet [len(suffixes)]os.FileInfo // nil: not there

// inUse has the files that connections of this process have open, by path. It is for the whole process because SQLite shares
// one -shm among all connections of a process, whoever opened them.
var inUse struct {
	mu   sync.Mutex // guards what follows
	sets map[string]*openSet
}

type openSet struct {
	fileSet
	connections int // with the ones that were left open, as their files were replaced
}

// statFiles returns the files that path leads to now. What cannot be looked at is as good as replaced.
func statFiles(path string) (found fileSet) {
	found[0], path = lookUp(path)
	for i, end := range suffixes[1:] {
		found[1+i], _ = os.Stat(path + end)
	}
	return found
}

// lookUp returns what path leads to, and its own path: the target of a link, beside which SQLite keeps the other two. No name is looked
// up twice, as this stands before each statement.
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

// followLink returns the target of a link.
func followLink(path string) string {
	_, target := lookUp(path)
	return target
}

// firstReplaced returns the end of the name of a file that is not the one in s, and whether there is any. While a connection is open
// all three are there.
func (s fileSet) firstReplaced(now fileSet) (end string, yes bool) {
	for i, was := range s {
		if was == nil || now[i] == nil || !os.SameFile(was, now[i]) {
			return suffixes[i], true
		}
	}
	return "", false
}

// checkFiles returns an error if path no longer leads to the files that connections of this process have open. Whoever opens
// that path now does not see their locks, nor they his.
func checkFiles(path string) error {
	inUse.mu.Lock()
	s := inUse.sets[path]
	inUse.mu.Unlock()
	if s == nil {
		return nil
	}
	if end, yes := s.firstReplaced(statFiles(path)); yes { // what s identifies never changes
		return errReplaced(path + end)
	}
	return nil
}

func errReplaced(name string) error {
	return driverkit.Refusal{Err: fmt.Errorf("%w: %s was removed or replaced while this program had it open, and other programs may take the same "+
		"locks in another one; start this program again, and remove no file of locks", driver.ErrConfig, name)}
}

// keeper opens connections that keep to the files of their path: none runs a statement once these were replaced.
type keeper struct {
	sqldriver.Connector
	path string
	nap  func(time.Duration)
}

// Connect implements sqldriver.Connector.
func (k keeper) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if err := checkFiles(k.path); err != nil {
		return nil, err
	}
	opened, err := persistent{k.Connector}.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn := opened.(fileConn)
	if _, err := conn.ExecContext(ctx, "PRAGMA schema_version", nil); err != nil { // which opens the other two
		conn.Close()
		return nil, err
	}
	found := statFiles(k.path)
	inUse.mu.Lock()
	defer inUse.mu.Unlock()
	s := inUse.sets[k.path]
	if s == nil { // so nobody else of this process has an older -shm
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
func (k keeper) Driver() sqldriver.Driver { return instant{k.Connector.Driver(), k.nap} }

// instant tells package sqllock that no statement on these connections waits, as source sets no busy_timeout.
type instant struct {
	sqldriver.Driver
	nap func(time.Duration)
}

// Nap blocks for less than a millisecond.
func (i instant) Nap(d time.Duration) { i.nap(d) }

// fileConn has what the SQLite driver's connections can do.
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

// keptConn is a connection of a keeper.
type keptConn struct {
	fileConn
	path string
}

// ResetSession implements sqldriver.SessionResetter: the pool calls it before each use but the first. Connect then has the reason.
func (c *keptConn) ResetSession(ctx context.Context) error {
	if checkFiles(c.path) != nil {
		return sqldriver.ErrBadConn
	}
	return c.fileConn.ResetSession(ctx)
}

// Close implements sqldriver.Conn. A connection whose files were replaced is left open until the process ends: SQLite would copy
// the pages of the old -wal over pages of a file that others write to.
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

// persistent opens connections whose end never removes -wal and -shm. SQLite lets the last program that closes the file remove
// both, and takes itself for the last where another has lost its locks on the file: a process does so that opens the file by
// any other way, such as to copy it, and closes it.
type persistent struct{ sqldriver.Connector }

// Connect implements sqldriver.Connector.
func (p persistent) Connect(ctx context.Context) (sqldriver.Conn, error) {
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
