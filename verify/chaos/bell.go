//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// On SQLite each client has a bell, a socket beside the file, by which a release wakes the next waiter. A ring
// is a hint, so its faults may cost time, but neither a lease nor an order of tokens.

// errNoBells means that a fault met no bell, and so has tested nothing.
var errNoBells = errors.New("no client had a socket beside the file")

// bells returns the paths of the sockets.
func (s *sqliteSite) bells() ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(s.dir, "locks.db-holdfast-*"))
	if err == nil && len(paths) == 0 {
		err = errNoBells
	}
	return paths, err
}

// hideBells gives the sockets other names while the fault lasts, so that all rings are lost.
func (s *sqliteSite) hideBells(f Fault, _ int, rest func(time.Duration)) error {
	paths, err := s.bells()
	if err != nil {
		return err
	}
	hidden := func(path string) string { return filepath.Join(s.dir, "hidden-"+filepath.Base(path)) }
	for _, path := range paths {
		err = errors.Join(err, ignoreMissing(os.Rename(path, hidden(path))))
	}
	rest(time.Duration(f.For))
	for _, path := range paths {
		err = errors.Join(err, ignoreMissing(os.Rename(hidden(path), path)))
	}
	return err
}

// ignoreMissing drops the error of a missing file, whose client has ended meanwhile.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// ringFalsely rings each bell every By for all waiters and holders, Count times each. A high Count fills the
// queues of the sockets, so that they reject the rings of clients.
func (s *sqliteSite) ringFalsely(f Fault, _ int, rest func(time.Duration)) error {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "locks.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(f.For)+storeTime)
	defer cancel()
	for end := monotonicNow() + int64(f.For); monotonicNow() < end; rest(time.Duration(f.By)) {
		paths, err := s.bells()
		if err != nil {
			return err
		}
		waiters, err := readColumn(ctx, db, "SELECT 'turn ' || owner FROM holdfast_ticket")
		if err != nil {
			return err
		}
		holders, err := readColumn(ctx, db, "SELECT 'forced ' || owner || ' by nobody' FROM holdfast_lock WHERE owner <> ''")
		if err != nil {
			return err
		}
		for _, message := range append(append(waiters, holders...), "", "turn", "nonsense") {
			for _, path := range paths {
				for range f.Count { // errors are part of the fault: a full queue, a client that has ended
					unix.Sendto(fd, []byte(message), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: path})
				}
			}
		}
	}
	return nil
}
