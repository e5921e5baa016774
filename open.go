package holdfast

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/sharding"
)

// Open returns a client for the service that url names. opts may be nil. The program imports the package of
// the engine, which registers the schemes of its URLs:
//
//	import _ "github.com/holdfast-go/holdfast/redis"          // redis:// rediss:// valkey:// valkeys:// redlock:// unix://, and redis+sentinel:// …
//	import _ "github.com/holdfast-go/holdfast/etcd"           // etcd:// etcds://
//	import _ "github.com/holdfast-go/holdfast/zookeeper"      // zk:// zks://
//	import _ "github.com/holdfast-go/holdfast/postgres"       // postgres:// postgresql://
//	import _ "github.com/holdfast-go/holdfast/sqllock/mysql"  // mysql:// mariadb://
//	import _ "github.com/holdfast-go/holdfast/sqllock/sqlite" // sqlite:
//
// The Open of each package documents the parameters of its URLs. Several URLs separated by blanks are one
// Redlock set. With a name before each, as in "a=redis://h1 b=redis://h2", they are several sets: see package
// sharding.
//
// Open asks the service once, for some seconds at most, to find errors that waiting does not fix: ErrInvalid
// for a URL that cannot be parsed or whose package is not imported, ErrAuth for a wrong password or missing
// permissions, ErrConfig for a server that cannot keep locks. If the service is down, or nothing answers at a wrong
// host or port, Open succeeds and warns the Logger, and Acquire waits for the service. A program that shall fail then
// adds down=refuse to a URL of Redis, or calls TryAcquire once, which returns ErrUnavailable. No error shows a
// password.
func Open(ctx context.Context, url string, opts *Options) (*Client, error) {
	if opts == nil {
		opts = &Options{}
	}
	drv, err := sharding.Open(ctx, url, &driver.OpenOptions{Logger: opts.Logger, AllowDown: true})
	if err != nil {
		return nil, wrapError("open", "", err)
	}
	return New(drv, opts)
}
