package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// errVersion reports that another version of this package has created the tables.
var errVersion = errors.New("the tables do not fit")

// checkVersion returns an error if this package cannot work with the version of the tables.
func (d *Driver) checkVersion(ctx context.Context, q querier) error {
	var v *int
	err := q.QueryRowContext(ctx, d.version.text).Scan(&v)
	switch {
	case err != nil:
		return err
	case v == nil || *v < version:
		return fmt.Errorf("%w: version %d of the tables %s* is needed; run holdfast migrate, or call Migrate in a program", errVersion, version, d.prefix)
	case *v > version:
		return fmt.Errorf("%w: the tables %s* have version %d, and this program knows version %d; update the program", errVersion, d.prefix, *v, version)
	}
	return nil
}

// Migrate creates the tables, or brings them up to date. Open the driver with NoCheck to call it. Several programs
// may call it at once. If the tables are up to date, it changes nothing. It blocks until the database has answered
// or ctx ends. Its user needs permission to create tables; programs that lock do not. Errors: ErrUnavailable,
// ErrAuth and ErrConfig, the last also for tables of a newer version.
func (d *Driver) Migrate(ctx context.Context) error {
	var err error
	for range 4 { // two programs that create the tables at once may collide; the retry finds the tables
		if err = d.retryWhileBusy(ctx, func() error { return d.migrate(ctx) }); err == nil || ctx.Err() != nil || errors.Is(err, errVersion) {
			break
		}
		d.raiseLevel(err)
	}
	if err == nil && d.forUpdate != "" {
		err = d.checkExclusion(ctx, false)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoExclusion):
	case d.kindOf(err) == denied, d.kindOf(err) == foreign:
		err = driverkit.PermanentError{Err: fmt.Errorf("%w: %w; take a user who may create tables there, or correct the name of the database", driver.ErrAuth, err)}
	default:
		err = d.explainError(ctx, err)
	}
	return fmt.Errorf("%s: migrate: %w", strings.ToLower(d.name), d.unavailableError(err))
}

func (d *Driver) migrate(ctx context.Context) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = d.checkVersion(ctx, conn)
	switch {
	case err == nil && d.dialect == SQLite:
		return d.tryWrite(ctx, conn)
	case err == nil || strings.Contains(err.Error(), "update the program"):
		return err
	}
	var together [][]string
	for text := range strings.SplitSeq(d.in(d.schema), ";\n") {
		switch {
		case strings.TrimSpace(text) == "":
		case len(together) == 0 || d.dialect == MySQL: // MySQL commits after each statement that creates a table
			together = append(together, []string{text})
		default:
			together[0] = append(together[0], text)
		}
	}
	for _, texts := range together {
		if err := d.execAll(ctx, conn, texts); err != nil {
			return err
		}
	}
	return nil
}

// execAll runs statements in one transaction.
func (d *Driver) execAll(ctx context.Context, conn *sql.Conn, texts []string) error {
	tx, err := d.beginTx(ctx, conn)
	if err != nil {
		return err
	}
	defer tx.Rollback() // ignore the error: the transaction is over, or its error is returned
	for _, text := range texts {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// tryWrite returns an error if the file rejects writes, so that Open reports a full disk. Another writer is no
// error.
func (d *Driver) tryWrite(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, d.in("UPDATE holdfast_version SET version = version"))
	if err == nil {
		return nil
	}
	switch d.kindOf(err) {
	case full, worn, readOnly:
		return err
	}
	return nil
}
