package sqlite

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
)

func init() {
	open := func(ctx context.Context, url string, o *driver.OpenOptions) (driver.Driver, error) {
		return Open(ctx, url, &Options{NoCheck: o.NoCheck, ReadOnly: o.ReadOnly})
	}
	driver.Register(open, "sqlite")
}
