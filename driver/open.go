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

// OpenOptions are the settings of Open that all engines share. The zero value works. Each engine's own Open
// takes further settings.
type OpenOptions struct {
	// Logger gets warnings about the set-up. nil: warnings go to slog's default.
	Logger *slog.Logger
	// ClientName is the name that CLIENT LIST of Redis shows. Default "holdfast".
	ClientName string
	// AllowDown lets Open succeed although a Redis node cannot be reached. Other engines always do.
	AllowDown bool
	// ReadOnly is for inspecting locks: Open writes nothing to Redis or to a SQLite file.
	ReadOnly bool
	// NoCheck skips the first check of the service, for Limits, Diagnose and the Migrate of databases.
	NoCheck bool
}

// OpenFunc opens the service of url. opts is not nil.
type OpenFunc func(ctx context.Context, url string, opts *OpenOptions) (Driver, error)

var (
	registryMu sync.RWMutex
	registry   = make(map[string]OpenFunc) // by scheme; guarded by registryMu
)

// enginePackages lists the packages that register schemes, in the order in which errors name them.
var enginePackages = []struct {
	path    string
	schemes []string
}{
	{"redis", []string{"redis", "rediss", "valkey", "valkeys", "unix", "redlock"}},
	{"sqllock/sqlite", []string{"sqlite"}},
	{"postgres", []string{"postgres", "postgresql"}},
	{"sqllock/mysql", []string{"mysql", "mariadb"}},
	{"etcd", []string{"etcd", "etcds"}},
	{"zookeeper", []string{"zk", "zks"}},
}

// Register makes Open use open for URLs with these schemes. Packages of drivers call it in their init
// functions. It panics if a scheme is registered already.
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

// Open opens the service of url: one URL, or several URLs separated by blanks for one set of servers. The
// scheme of the first selects the engine. opts may be nil. It blocks as the Open of the engine does, for some
// seconds at most. For a scheme that no imported package has registered it returns ErrInvalid, and the error
// names the package to import. Other errors come from the engine. No error shows a password.
func Open(ctx context.Context, url string, opts *OpenOptions) (Driver, error) {
	var o OpenOptions
	if opts != nil {
		o = *opts
	}
	open, err := openerFor(schemeOf(url))
	if err != nil {
		return nil, err
	}
	d, err := open(ctx, url, &o)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// schemeOf returns the text before the first colon, or "" if it cannot be a scheme.
func schemeOf(url string) string {
	scheme, _, ok := strings.Cut(strings.TrimSpace(url), ":")
	if !ok || strings.ContainsFunc(scheme, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
	}) {
		return ""
	}
	return scheme
}

// openerFor returns the function that is registered for scheme. If no scheme matches but one is similar, it
// returns the function of that engine, whose error tells what to write.
func openerFor(scheme string) (OpenFunc, error) {
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
	for _, p := range enginePackages {
		if near := nearestScheme(base, p.schemes); near != "" {
			return nil, fmt.Errorf("%w: no package for %s:// is imported; add import _ \"github.com/holdfast-go/holdfast/%s\"", ErrInvalid, near, p.path)
		}
	}
	if len(registry) == 0 {
		return nil, fmt.Errorf("%w: no engine is imported; for Redis add import _ \"github.com/holdfast-go/holdfast/redis\"", ErrInvalid)
	}
	return nil, fmt.Errorf("%w: the URL does not begin with %s%s", ErrInvalid, commonSchemes(), missingSchemes())
}

// nearestScheme returns the scheme that equals base or begins with its first four letters; "" if there is none.
func nearestScheme(base string, schemes []string) string {
	if slices.Contains(schemes, base) {
		return base
	}
	for _, scheme := range schemes {
		if len(base) > 4 && strings.HasPrefix(scheme, base[:4]) { // postgers
			return scheme
		}
	}
	return ""
}

// missingSchemes returns the schemes that need a further import, with its path. The caller holds registryMu.
func missingSchemes() string {
	var texts []string
	for _, p := range enginePackages {
		if registry[p.schemes[0]] == nil {
			texts = append(texts, fmt.Sprintf("%s:// needs %s", strings.Join(p.schemes, ":// "), p.path))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return "; not imported from github.com/holdfast-go/holdfast/: " + strings.Join(texts, ", ")
}

// commonSchemes returns the registered schemes without their variants, and an example. The caller holds
// registryMu.
func commonSchemes() string {
	var usual []string
	for _, p := range enginePackages {
		usual = append(usual, p.schemes...)
	}
	for _, scheme := range slices.Sorted(maps.Keys(registry)) { // packages that the list above does not know
		if base, _, _ := strings.Cut(scheme, "+"); !slices.Contains(usual, base) {
			usual = append(usual, scheme)
		}
	}
	usual = slices.DeleteFunc(usual, func(scheme string) bool { return registry[scheme] == nil })
	text := strings.Join(usual, "://, ") + "://"
	if registry["redis"] != nil {
		text += " (for Redis also redis+sentinel://, redis+cluster://, redis+replicas://); an example: redis://localhost:6379"
	}
	return text
}
