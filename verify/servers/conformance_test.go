//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/verify/tool"
)

// TestConformanceAtURL runs the suite at the URL of a row, as the step suite does.
func TestConformanceAtURL(t *testing.T) {
	rig.Nightly(t, "servers")
	url := os.Getenv(urlVariable)
	if url == "" {
		t.Skip("go run ./servers -steps suite gives it a server")
	}
	var spaces atomic.Int64
	locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
		open, err := newSpace(t.Context(), url, fmt.Sprintf("t%d", spaces.Add(1)))
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := countNodes(t.Context(), open)
		if err != nil {
			t.Fatal(err)
		}
		return locktest.Service{
			Open:     func() (driver.Driver, error) { return open(t.Context()) },
			Nodes:    nodes,
			NoAlerts: os.Getenv(deafVariable) != "",
		}
	}})
}

// countNodes returns the number of nodes in the result of Inspect.
func countNodes(ctx context.Context, open opener) (int, error) {
	d, err := open(ctx)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	inspector, ok := d.(driver.Inspector)
	if !ok {
		return 0, nil
	}
	status, err := inspector.Inspect(ctx, "k")
	return len(status.Nodes), err
}

type opener = func(context.Context) (driver.Driver, error)

// newSpace returns a function that opens drivers with private locks on the service at the URL.
func newSpace(ctx context.Context, url, name string) (opener, error) {
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "postgres": // of one database, for which a pooler keeps sessions
		url += "&holdfast_schema=" + name
		return openAt(url), tool.MakeTables(ctx, url)
	case "mysql", "mysql+unix":
		mark := "?"
		if strings.Contains(url, "?") {
			mark = "&"
		}
		url += mark + "prefix=" + name + "_"
		return openAt(url), tool.MakeTables(ctx, url)
	case "redis", "redis+cluster":
		return func(ctx context.Context) (driver.Driver, error) {
			d, err := redis.Open(ctx, url, &redis.Options{Prefix: name + ":"})
			if err != nil {
				return nil, err
			}
			return d, nil
		}, nil
	}
	return openAt(url + name), nil // a path of etcd or ZooKeeper
}

func openAt(url string) opener {
	return func(ctx context.Context) (driver.Driver, error) { return driver.Open(ctx, url, nil) }
}
