package driver

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// OpenOptions are the settings of Open that all engines share. The zero value works. Each engine's own
// Open takes all of its settings.
type OpenOptions struct {
	// Logger gets warnings about the set-up. nil: warnings go to slog's default.
	Logger *slog.Logger
	// ClientName is shown by CLIENT LIST of Redis. Default "holdfast".
	ClientName string
	// AllowDown lets Open succeed while a Redis cannot be reached, as it always does with the other engines.
	AllowDown bool
	// ReadOnly is for looking at locks: Open writes nothing to Redis or to a file of SQLite.
	ReadOnly bool
	// NoCheck leaves out the first look at the service, for Limits, Diagnose and the Migrate of databases.
	NoCheck bool
}

// OpenFunc opens the service that url names. opts is not nil.
type OpenFunc func(ctx context.Context, url string, opts *OpenOptions) (Driver, error)

var (
	registryMu sync.RWMutex
	registry   = make(map[string]OpenFunc) // by scheme; registryMu guards it
)

// imports names the package that registers a scheme, for the error of a program that does not import it.
var imports = map[string]string{
	"redis": "redlock", "rediss": "redlock", "valkey": "redlock", "valkeys": "redlock", "redlock": "redlock", "unix": "redlock",
	"postgres": "postgres", "postgresql": "postgres", "etcd": "etcd", "etcds": "etcd", "zk": "zookeeper", "zks": "zookeeper",
	"mysql": "sqllock/mysql", "mariadb": "sqllock/mysql", "sqlite": "sqllock/sqlite",
}

// Register makes Open use open for URLs with these schemes. Packages of drivers call it when they are
// imported. It panics if a scheme is registered already.
func Register(open OpenFunc, schemes ...string) {
	registryMu.Lock()
	defer registryMu.Unlock()
	for _, scheme := range schemes {
		if registry[scheme] != nil {
			panic("driver: the scheme " + scheme + " is registered twice")
		}
		registry[scheme] = open
	}
}

// Open opens the service that url names: one URL, or several with blanks between them for one set of
// servers, of which the first decides. opts may be nil. It blocks as the Open of the engine does, for some
// seconds at most. A scheme that no imported package has registered is ErrInvalid, and the error names
// the package to import. Other errors are those of the engine. No error shows a password.
func Open(ctx context.Context, url string, opts *OpenOptions) (Driver, error) {
	var o OpenOptions
	if opts != nil {
		o = *opts
	}
	open, err := opener(schemeOf(url))
	if err != nil {
		return nil, err
	}
	d, err := open(ctx, url, &o)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// schemeOf returns what stands before the first colon; "" if nothing that could be a scheme does.
func schemeOf(url string) string {
	scheme, _, ok := strings.Cut(strings.TrimSpace(url), ":")
	if !ok || strings.ContainsFunc(scheme, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
	}) {
		return ""
	}
	return scheme
}

// opener returns the function that is registered for scheme. A scheme that is nearly right goes to the
// engine that it resembles, whose error says what to write.
func opener(scheme string) (OpenFunc, error) {
	registryMu.RLock()
	defer registryMu.RUnlock()
	if open := registry[scheme]; open != nil {
		return open, nil
	}
	lower := strings.ToLower(scheme)
	for _, length := range []int{len(lower), 4, 3} { // redis-sentinel, postgre, mysqls
		if length > len(lower) || length < 3 {
			continue
		}
		for _, known := range slices.Sorted(maps.Keys(registry)) {
			if strings.HasPrefix(known, lower[:length]) {
				return registry[known], nil
			}
		}
	}
	base, _, _ := strings.Cut(lower, "+")
	if pkg := imports[base]; pkg != "" {
		return nil, fmt.Errorf("%w: no package for %s:// is imported; add import _ \"github.com/holdfast-go/holdfast/%s\"", ErrInvalid, base, pkg)
	}
	if len(registry) == 0 {
		return nil, fmt.Errorf("%w: no engine is imported; for Redis add import _ \"github.com/holdfast-go/holdfast/redlock\"", ErrInvalid)
	}
	var usual []string
	for known := range registry {
		if !strings.Contains(known, "+") {
			usual = append(usual, known)
		}
	}
	slices.Sort(usual)
	return nil, fmt.Errorf("%w: the URL does not begin with a scheme of an imported engine: %s; write it as scheme://host:port, and import the package of another engine",
		ErrInvalid, strings.Join(usual, ", "))
}
