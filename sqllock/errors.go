package sqllock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// kind classifies an error by its meaning for the statement.
type kind int

const (
	fails    kind = iota
	yields        // a conflicting statement was executed instead: repeat this one
	cut           // a user or a limit of the server has ended the statement
	locked        // another transaction has locked the row (NOWAIT)
	broken        // the connection has ended
	there         // the row exists
	denied        // the user lacks a permission
	alien         // wrong user or password
	lacks         // a table is missing
	nameless      // the database does not exist
	foreign       // the database does not exist, or the user may not use it
	misset        // the server does not know a setting
	unlogged      // the binlog rejects changes at this isolation level
	unmarked      // the savepoint, and so its transaction, is gone
	readOnly
	full
	crowded
	worn     // the disk rejects writes
	unopened // the file cannot be opened
	spoiled  // the file is not a database
)

// kinds maps error numbers of MySQL and SQLite to kinds.
var kinds = map[string]kind{
	"mysql 1213": yields, "mysql 1205": yields, "mysql 1020": yields, "mysql 3058": yields, "mysql 3572": locked, "mysql 1062": there,
	"mysql 1317": cut, "mysql 1969": cut, "mysql 3024": cut, "mysql 1142": denied, "mysql 1143": denied,
	"mysql 1044": foreign, "mysql 1227": denied, "mysql 1370": denied, "mysql 1045": alien, "mysql 1698": alien, "mysql 1146": lacks,
	"mysql 1305": unmarked, "mysql 1665": unlogged, "mysql 1193": misset, "mysql 1231": misset, "mysql 1049": nameless, "mysql 1046": nameless,
	"mysql 1290": readOnly, "mysql 1792": readOnly, "mysql 1836": readOnly, "mysql 1036": readOnly,
	"mysql 1114": full, "mysql 1021": full, "mysql 1040": crowded, "mysql 1203": crowded, "mysql 1053": broken, "mysql 1927": broken,
	"mysql 1047": broken, // a node of Galera that has left its cluster

	"sqlite 5": yields, "sqlite 6": yields, "sqlite 8": readOnly, "sqlite 10": worn, "sqlite 13": full,
	"sqlite 14": unopened, "sqlite 11": spoiled, "sqlite 26": spoiled,
}

var mysqlError = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|: )Error (\d+)(?: \(\w+\))?: `) })

// kindOf classifies an error by its text and by what every sql driver returns, so that no driver must be
// imported.
func (s dialectRules) kindOf(err error) kind {
	text := err.Error()
	switch {
	case s.name == "MySQL":
		if said := mysqlError().FindStringSubmatch(text); said != nil {
			return kinds["mysql "+said[1]]
		}
	case strings.Contains(text, "no such table"):
		return lacks
	default:
		if said, ok := errors.AsType[interface {
			error
			Code() int
		}](err); ok {
			return kinds["sqlite "+strconv.Itoa(said.Code()&0xff)]
		}
		for words, k := range map[string]kind{
			"database is locked": yields, "database table is locked": yields, "readonly database": readOnly, "disk is full": full,
			"unable to open database file": unopened, "file is not a database": spoiled, "malformed": spoiled,
		} {
			if strings.Contains(text, words) {
				return k
			}
		}
		return fails
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fails
	}
	return broken // no answer from the server
}

// explainError returns err with its meaning and its fix.
func (d *Driver) explainError(ctx context.Context, err error) error {
	lasts := func(format string, args ...any) error {
		return driverkit.PermanentError{Err: fmt.Errorf(format, args...)}
	}
	switch d.kindOf(err) {
	case alien:
		return lasts("%w: %w; correct user and password", driver.ErrAuth, err)
	case denied:
		return lasts("%w: %w; grant SELECT, INSERT, UPDATE, DELETE on the tables %s*", driver.ErrAuth, err, d.prefix)
	case foreign:
		return lasts("%w: %w; correct the name of the database, or grant SELECT, INSERT, UPDATE, DELETE on its tables %s*", driver.ErrAuth, err, d.prefix)
	case lacks:
		return lasts("there are no tables %s* for locks, or not all of them: %w; run holdfast migrate, or call Migrate in a program", d.prefix, err)
	case nameless:
		return lasts("%w; create it, or name another", err)
	case misset:
		return lasts("%w; correct the settings of the sessions", err)
	case readOnly:
		if d.dialect == SQLite {
			return lasts("%w: %w; let this user write to the file, to those beside it that end in -wal and -shm, and to its folder", driver.ErrAuth, err)
		}
		return fmt.Errorf("no writes are taken: %w; name the primary if this is a replica, or else set the read-only setting of server, user or session off", err)
	case full:
		return fmt.Errorf("%w; make room on the disk, as locks that are held lapse meanwhile", err)
	case worn:
		return fmt.Errorf("%w; the disk is full or fails: make room on it or replace it, because held locks lapse meanwhile", err)
	case crowded:
		return fmt.Errorf("%w; raise max_connections, or bound the pools of the programs", err)
	case unopened:
		return lasts("%w; let this user read and write the file and its folder, which has to be there", err)
	case spoiled:
		return lasts("%w; name another file, or remove this one if it is of no use", err)
	}
	switch {
	case errors.Is(err, errVersion):
		return driverkit.PermanentError{Err: err}
	case isLate(ctx):
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// unavailableError returns an error for a database that has not answered, with the reason.
func (d *Driver) unavailableError(err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return err
	}
	return d.states.Unavailable(nil, driver.NodeError{Node: d.node, Err: err})
}
