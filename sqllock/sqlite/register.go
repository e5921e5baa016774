package sqlite

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

func init() {
	open := func(ctx context.Context, url string, o *driver.OpenOptions) (driver.Driver, error) {
		return Open(driverkit.WithWarnings(ctx, o), url, &Options{NoCheck: o.NoCheck, ReadOnly: o.ReadOnly})
	}
	driver.Register(open, "sqlite")
}
