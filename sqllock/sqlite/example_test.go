package sqlite_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// Locks between the processes of one machine, without a server.
func Example() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "sqlite:///var/lib/holdfast/locks.db", nil) // import _ "github.com/holdfast-go/holdfast/sqllock/sqlite"
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = client.Do(ctx, "nightly-report", nil, func(ctx context.Context, lease *holdfast.Lease) error { return nil })
	if err != nil {
		log.Print(err)
	}
}
