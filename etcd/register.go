package etcd

import (
	"context"
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

func init() {
	open := func(ctx context.Context, url string, o *driver.OpenOptions) (driver.Driver, error) {
		return Open(driverkit.WithWarnings(ctx, o), url, &Options{NoCheck: o.NoCheck})
	}
	driver.Register(open, slices.Collect(maps.Keys(grammar.Schemes))...)
}
