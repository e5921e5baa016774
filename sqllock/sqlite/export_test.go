package sqlite

import (
	"context"
	"time"
)

// Limit sets how many pages the file may have, on every connection of d.
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
		defer conn.Close() // all are taken until each has heard
		if _, err := conn.ExecContext(context.Background(), "PRAGMA max_page_count = "+pages); err != nil {
			return err
		}
	}
	return nil
}

// Socket is a test's socket in the place of a bell's.
type Socket = socket

// OpenWith does what Open does in a bubble, whose clock has to go on in pauses, with another way for processes to reach one another.
func OpenWith(ctx context.Context, url string, hang func(file, id string, hear func(message string)) (Socket, error)) (*Driver, error) {
	return openFile(ctx, url, nil, hang, time.Sleep)
}
