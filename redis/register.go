package redis

import (
	"context"
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

func init() {
	open := func(ctx context.Context, url string, o *driver.OpenOptions) (driver.Driver, error) {
		return Open(ctx, url, &Options{
			Logger: o.Logger, ClientName: o.ClientName, AllowDown: o.AllowDown, ReadOnly: o.ReadOnly, NoCheck: o.NoCheck,
		})
	}
	driver.Register(open, slices.Collect(maps.Keys(grammar.Schemes))...)
}
