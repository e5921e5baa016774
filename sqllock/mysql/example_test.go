package mysql_test

import (
	"context"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

// The first program to start creates the tables. Alternatively a user who may create them runs holdfast
// migrate.
func Example() {
	ctx := context.Background()
	drv, err := mysql.Open(ctx, "mysql://app:secret@db.example.com/app?tls=true", &mysql.Options{NoCheck: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := drv.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = client.Do(ctx, "nightly-report", nil, func(ctx context.Context, lease *holdfast.Lease) error { return nil })
	if err != nil {
		log.Print(err)
	}
}
