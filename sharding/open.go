package sharding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// Open opens the services in urls: one service, as driver.Open does, or several sets, over which New then
// spreads the names. For several sets, each URL has the name of its set before it. opts may be nil.
//
//	a=redis://h1:6379 b=redis://h2:6379 b=redis://h3:6379 b=redis://h4:6379
//
// If there are several sets, each may be down when it is opened: then only its names are unavailable. Errors:
// the errors of driver.Open; ErrInvalid for a list that cannot be parsed.
func Open(ctx context.Context, urls string, opts *driver.OpenOptions) (driver.Driver, error) {
	all, err := driverkit.ParseSets(urls)
	if err != nil {
		return nil, err
	}
	if all[0].Name == "" {
		return driver.Open(ctx, all[0].URLs, opts)
	}
	o := driver.OpenOptions{}
	if opts != nil {
		o = *opts
	}
	o.AllowDown = true
	sets, errs := make([]Set, len(all)), make([]error, len(all))
	var opening sync.WaitGroup
	for i, s := range all {
		opening.Go(func() {
			sets[i].Name = s.Name
			if sets[i].Driver, errs[i] = driver.Open(ctx, s.URLs, &o); errs[i] != nil {
				errs[i] = fmt.Errorf("set %s: %w", s.Name, errs[i])
			}
		})
	}
	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		for i, s := range sets {
			if errs[i] == nil {
				s.Driver.Close()
			}
		}
		return nil, err
	}
	return New(sets, nil)
}
