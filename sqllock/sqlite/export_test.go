package sqlite

import "context"

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
