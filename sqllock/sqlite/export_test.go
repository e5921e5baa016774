package sqlite

import (
	"context"
	"time"
)

// Limit sets the maximal number of pages of the file, on every connection of d.
func Limit(d *Driver, pages string) error {
	if pages == "page_count" {
		var n string
		if err := d.db.QueryRow("PRAGMA page_count").Scan(&n); err != nil {
			return err
		}
		pages = n
	}
	for range connections {
		conn, err := d.db.Conn(context.Background())
		if err != nil {
			return err
		}
		defer conn.Close() // keep all connections until each one is set
		if _, err := conn.ExecContext(context.Background(), "PRAGMA max_page_count = "+pages); err != nil {
			return err
		}
	}
	return nil
}

// Socket is the type of a bell's socket, for tests.
type Socket = socket

// OpenWith does what Open does, inside a bubble: hang connects the processes, and pauses sleep, so that the
// bubble's clock advances.
func OpenWith(ctx context.Context, url string, hang func(file, id string, hear func(message string)) (Socket, error)) (*Driver, error) {
	return openFile(ctx, url, nil, hang, time.Sleep)
}
