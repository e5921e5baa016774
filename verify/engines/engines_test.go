// Package engines generates the page that compares the engines, from the code: constructors, abilities, and
// errors against real servers.
package engines

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sharding"
	"github.com/holdfast-go/holdfast/sqllock"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
	"github.com/holdfast-go/holdfast/zookeeper"
)

const page = "../../docs/engines.md"

// The text around the tables, with ~ for each backtick.
const (
	opening = `# The engines side by side

Options, abilities and errors of each engine; [choosing.md](choosing.md) helps to choose one. ~cd verify && go test ./engines -update~ writes
this page from the types and against real servers, and the test fails if it is out of date.

## Open

~holdfast.Open(ctx, url, opts)~ returns a client for any engine whose package the program imports, with the engine's default options. To pass
other options, call the ~Open~ of the package, which takes a URL, or ~New~, which takes the engine's native client or settings, such as the pool
of a program; ~holdfast.New~ makes the client, which closes its driver. All ask the service once, and return an error that time does not fix.
With the option ~NoCheck~ none of them asks: use such a driver for ~Limits~, ~Diagnose~ and the ~Migrate~ of databases.

`
	abilities = `
## Abilities

What an engine cannot do returns ~ErrUnsupported~. The column for several sets shows sets of package ~memory~; each set supports what its engine does.

`
	refusals = `
## Errors

Compare errors by ~errors.Is~ with the errors of package ~holdfast~, which are the same for each engine. Where the table names ~TryAcquire~,
~Open~ succeeds; ~Acquire~ then waits for a service that does not answer. – : not tested, because the MariaDB of the tests asks for no password,
and root may write to any file.

`
)

var update = flag.Bool("update", false, "write docs/engines.md instead of comparing it")

// engine is one column of the tables.
type engine struct {
	name            string
	construct       []any  // Open and New
	example         string // a URL
	driver          holdfast.Driver
	open, unchecked func(ctx context.Context, url string) (holdfast.Driver, error)
	refused         func(*testing.T) (auth, config []string) // URLs for which Open returns ErrAuth and ErrConfig
}

// openerOf adapts Open to a common signature.
func openerOf[D holdfast.Driver, O any](open func(context.Context, string, *O) (D, error), opts *O) func(context.Context, string) (holdfast.Driver, error) {
	return func(ctx context.Context, url string) (holdfast.Driver, error) {
		d, err := open(ctx, url, opts)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
}

func allEngines(t *testing.T) []*engine {
	all := []*engine{
		{
			name: "Redis, Valkey", construct: []any{redis.Open, redis.New}, example: "redis://user:password@host:6379/0",
			open: openerOf(redis.Open, nil), unchecked: openerOf(redis.Open, &redis.Options{NoCheck: true}), refused: redisRefuses,
		},
		{
			name: "PostgreSQL", construct: []any{postgres.Open, postgres.New}, example: "postgres://user:password@host:5432/database?sslmode=verify-full",
			open: openerOf(postgres.Open, nil), unchecked: openerOf(postgres.Open, &postgres.Options{NoCheck: true}), refused: postgresRefuses,
		},
		{
			name: "etcd", construct: []any{etcd.Open, etcd.New}, example: "etcd://user:password@host:2379,host:2380/prefix",
			open: openerOf(etcd.Open, nil), unchecked: openerOf(etcd.Open, &etcd.Options{NoCheck: true}), refused: etcdRefuses,
		},
		{
			name: "ZooKeeper", construct: []any{zookeeper.Open, zookeeper.New}, example: "zk://user:password@host:2181,host:2182/path",
			open: openerOf(zookeeper.Open, nil), unchecked: openerOf(zookeeper.Open, &zookeeper.Options{NoCheck: true}), refused: zookeeperRefuses,
		},
		{
			name: "MySQL, MariaDB", construct: []any{mysql.Open, sqllock.New}, example: "mysql://user:password@host:3306/database",
			open: openerOf(mysql.Open, nil), unchecked: openerOf(mysql.Open, &mysql.Options{NoCheck: true}), refused: mysqlRefuses,
		},
		{
			name: "SQLite", construct: []any{sqlite.Open, sqllock.New}, example: "sqlite:///path/locks.db",
			open: openerOf(sqlite.Open, nil), unchecked: openerOf(sqlite.Open, &sqlite.Options{NoCheck: true}), refused: sqliteRefuses,
		},
		{name: "memory", construct: []any{nil, memory.New}, driver: memory.New(1)},
	}
	for _, e := range all {
		if e.driver == nil {
			d, err := e.unchecked(t.Context(), e.example)
			if err != nil {
				t.Fatalf("%s with NoCheck: %v", e.example, err)
			}
			e.driver = d
		}
	}
	sets, err := sharding.New([]sharding.Set{{Name: "a", Driver: memory.New(1)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, &engine{name: "several sets", construct: []any{nil, sharding.New}, driver: sets})
	t.Cleanup(func() {
		for _, e := range all {
			e.driver.Close()
		}
	})
	return all
}

func TestPageMatchesEngines(t *testing.T) {
	t.Parallel()
	all := allEngines(t)
	errs := openOutcomes(t, all)
	var b strings.Builder
	b.WriteString(opening)
	writeTable(&b, all, []row{
		{"URL", func(e *engine) string { return formatCode(e.example) }},
		{"`Open`", func(e *engine) string { return signatureOf(e.construct[0]) }},
		{"`New`", func(e *engine) string { return signatureOf(e.construct[1]) }},
	})
	b.WriteString(abilities)
	writeTable(&b, all, []row{
		limitRow("fencing tokens", func(l holdfast.Limits) string { return yesOrNo(l.Token) }),
		limitRow("order of arrival", func(l holdfast.Limits) string { return yesOrNo(l.Order) }),
		limitRow("`MinHold`", func(l holdfast.Limits) string { return yesOrNo(l.MinHold) }),
		limitRow("`Extend` to another TTL", func(l holdfast.Limits) string { return yesOrNo(l.ChangeTTL) }),
		limitRow("shortest TTL", func(l holdfast.Limits) string { return l.MinTTL.String() }),
		limitRow("longest TTL", func(l holdfast.Limits) string { return formatLimit(l.MaxTTL) }),
		limitRow("TTLs in steps of", func(l holdfast.Limits) string { return formatStep(l.Granularity) }),
		abilityRow[driver.Inspector]("`Inspect`"),
		abilityRow[driver.Lister]("`List`"),
		abilityRow[driver.Queuer]("`Queue`"),
		abilityRow[driver.Checker]("`Check`"),
		abilityRow[driver.Forcer]("`ForceRelease`"),
		abilityRow[driver.Alerter]("its holder learns of it at once"),
		abilityRow[driver.Adopter]("`Adoptable`, `Detach`, `Adopt`"),
		abilityRow[driver.Notifier]("`Nodes` and events of nodes"),
		abilityRow[driver.Doctor]("`Diagnose`"),
	})
	b.WriteString(refusals)
	writeTable(&b, all[:6], []row{
		{"`Open` of a URL that cannot be read", func(e *engine) string { return errs[e].invalid }},
		{"wrong password, user or rights", func(e *engine) string { return errs[e].auth }},
		{"a service that is not fit, or not what was meant", func(e *engine) string { return errs[e].config }},
		{"nobody there", func(e *engine) string { return errs[e].down }},
	})
	if t.Failed() {
		return
	}
	want := strings.ReplaceAll(b.String(), "~", "`")
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(page); err != nil || string(text) != want {
		t.Errorf("docs/engines.md is out of date (%v); write it by: cd verify && go test ./engines -update\n%s", err, want)
	}
}

// row is one line of a table.
type row struct {
	name string
	of   func(*engine) string
}

func writeTable(b *strings.Builder, all []*engine, rows []row) {
	b.WriteString("| |")
	for _, e := range all {
		b.WriteString(" " + e.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(all)) + "\n")
	for _, r := range rows {
		b.WriteString("| " + r.name + " |")
		for _, e := range all {
			b.WriteString(" " + r.of(e) + " |")
		}
		b.WriteString("\n")
	}
}

func limitRow(name string, of func(holdfast.Limits) string) row {
	return row{name, func(e *engine) string { return of(e.driver.Limits()) }}
}

func abilityRow[I any](name string) row {
	return row{name, func(e *engine) string {
		_, can := e.driver.(I)
		return yesOrNo(can)
	}}
}

func yesOrNo(can bool) string {
	if can {
		return "yes"
	}
	return "–"
}

func formatLimit(d time.Duration) string {
	if d == 0 {
		return "a year"
	}
	return strings.TrimSuffix(d.String(), "0m0s")
}

func formatStep(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return d.String()
}

func formatCode(text string) string {
	if text == "" {
		return "–"
	}
	return "`" + text + "`"
}

// signatureOf returns the parameters of a constructor.
func signatureOf(fn any) string {
	if fn == nil {
		return "–"
	}
	var in []string
	for typ, i := reflect.TypeOf(fn), 0; i < typ.NumIn(); i++ {
		name := typ.In(i).String()
		if name == "context.Context" {
			name = "ctx"
		}
		in = append(in, name)
	}
	return formatCode("(" + strings.Join(in, ", ") + ")")
}

// outcome holds the errors of one engine's Open.
type outcome struct{ invalid, auth, config, down string }

// openOutcomes calls Open with URLs that must fail.
func openOutcomes(t *testing.T, all []*engine) map[*engine]*outcome {
	t.Helper()
	of := make(map[*engine]*outcome)
	var working sync.WaitGroup
	for _, e := range all[:6] {
		out := new(outcome)
		of[e] = out
		working.Go(func() {
			scheme, _, _ := strings.Cut(e.example, "://")
			out.invalid, out.down = e.outcomeOf(t, true, scheme+"://host:port"), "–"
			if scheme != "sqlite" { // sqlite has no server
				out.down = e.outcomeOf(t, false, scheme+"://"+unusedAddr(t)+database[scheme])
			}
			auth, config := e.refused(t)
			out.auth, out.config = "–", e.outcomeOf(t, true, config...)
			if len(auth) > 0 {
				out.auth = e.outcomeOf(t, true, auth...)
			}
		})
	}
	working.Wait()
	return of
}

// database is the path of an engine's URL if it needs one.
var database = map[string]string{"mysql": "/app"}

// unusedAddr returns an address without a listener.
func unusedAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer l.Close()
	return l.Addr().String()
}

// roots are the errors that callers test for.
var roots = map[string]error{
	"`ErrInvalid`": holdfast.ErrInvalid, "`ErrAuth`": holdfast.ErrAuth, "`ErrConfig`": holdfast.ErrConfig, "`ErrUnavailable`": holdfast.ErrUnavailable,
}

// outcomeOf names the errors that the result of Open matches, the same for each URL. ErrAuth and ErrConfig may
// be inside an ErrUnavailable of a node. With rejects, a server rejects the client, so that Open has an error if
// the server answers in time.
func (e *engine) outcomeOf(t *testing.T, rejects bool, urls ...string) (text string) {
	for i, url := range urls {
		d, err := e.open(t.Context(), url)
		for tries := 0; err == nil && tries < 3 && rejects; tries++ { // an answer may come too late for Open, as on a busy machine
			d.Close()
			d, err = e.open(t.Context(), url)
		}
		behind := ""
		if err == nil {
			behind = ", of `TryAcquire`"
			err = tryAcquire(t.Context(), d)
		}
		var names []string
		for _, name := range []string{"`ErrInvalid`", "`ErrAuth`", "`ErrConfig`", "`ErrUnavailable`"} {
			if errors.Is(err, roots[name]) {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			t.Errorf("%s: %s: %v", e.name, url, err)
			return ""
		}
		first := names[0] + behind
		if i > 0 && first != text || len(names) > 1 && names[1] != "`ErrUnavailable`" {
			t.Errorf("%s: %v matches %v, and another error of that kind %s", e.name, err, names, text)
		}
		text = first
	}
	return text
}

// tryAcquire requests a lock.
func tryAcquire(ctx context.Context, d holdfast.Driver) error {
	c, err := holdfast.New(d, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.TryAcquire(ctx, "k", nil)
	return err
}

func redisRefuses(t *testing.T) (auth, config []string) {
	s := redistest.Start(t, &redisproc.Options{Password: "right"})
	return []string{"redis://:wrong@" + s.Addr(), "redis://" + s.Addr()},
		[]string{"redis://:right@" + s.Addr() + "/99"}
}

func postgresRefuses(t *testing.T) (auth, config []string) {
	s, err := pgproc.Start(t.Context())
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	t.Cleanup(func() { s.Stop() })
	return []string{strings.Replace(s.DSN(), "user=holdfast", "user=nobody", 1)}, []string{s.DSN(), s.DSN() + " nonsense=1"}
}

// mysqlRefuses has no wrong password: the test servers require none.
func mysqlRefuses(t *testing.T) (auth, config []string) {
	s, err := mariaproc.Start(t.Context())
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	t.Cleanup(func() { s.Stop() })
	return nil, []string{"mysql+unix://root@" + s.Socket() + "?db=nosuch"}
}

// sqliteRefuses has no file without permissions, because the tests may run as root.
func sqliteRefuses(t *testing.T) (auth, config []string) {
	return nil, []string{"sqlite://" + t.TempDir() + "/none/locks.db", "sqlite://" + t.TempDir()}
}

func etcdRefuses(t *testing.T) (auth, config []string) {
	var addrs []string
	for range 2 {
		c, err := etcdproc.Start(t.Context(), 1)
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		t.Cleanup(func() { c.Stop() })
		addrs = append(addrs, c.Addrs()...)
	}
	config = []string{"etcd://" + strings.Join(addrs, ",")}
	d, err := etcd.Open(t.Context(), config[0], nil) // before one of them requires a login
	if err == nil {
		d.Close()
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: addrs[:1]})
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	defer c.Close()
	_, err1 := c.UserAdd(t.Context(), "root", "right")
	_, err2 := c.UserGrantRole(t.Context(), "root", "root")
	_, err3 := c.AuthEnable(t.Context())
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Error(err)
	}
	if d, err := etcd.Open(t.Context(), "etcd://root:right@"+addrs[0], nil); err == nil { // once the login works, every request requires one
		tryAcquire(t.Context(), d)
	}
	return []string{"etcd://root:wrong@" + addrs[0], "etcd://" + addrs[0]}, config
}

func zookeeperRefuses(t *testing.T) (auth, config []string) {
	var addrs []string
	for range 2 {
		e, err := zkproc.Start(t.Context(), 1)
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		t.Cleanup(func() { e.Stop() })
		addrs = append(addrs, e.Addrs()...)
	}
	d, err := zookeeper.Open(t.Context(), "zk://me:right@"+addrs[0]+"/mine", nil)
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	defer d.Close()
	g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: 10 * time.Second})
	if err == nil {
		err = d.Release(t.Context(), g, 0)
	}
	if err != nil {
		t.Error(fmt.Errorf("the nodes of a user: %w", err))
	}
	return []string{"zk://me:wrong@" + addrs[0] + "/mine", "zk://" + addrs[0] + "/mine"}, []string{"zk://" + strings.Join(addrs, ",")}
}
