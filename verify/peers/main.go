//go:build linux

// Peers makes the holder of each lock library lose its lock in the same ways, on real servers, and writes the
// library's reaction into the table of docs/peers.md. Holdfast gets the same treatment.
//
//	go run ./peers -md ../docs/peers.md        every library: ten minutes
//	go run ./peers -only redsync,Curator       print the rows whose name has one of these texts
//	go run ./peers -scenes hang,stop           print only these columns
//
// With -md, the page keeps rows and columns that are not run.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/verify/interop/foreign"
	"github.com/holdfast-go/holdfast/verify/tool"
)

// serveVariable makes this program serve the workers of a library: its name, the server, the key and the
// number of workers.
const serveVariable = "HOLDFAST_PEERS_SERVE"

// The table is between these lines of the page.
const tableStart, tableEnd = "<!-- begin: go run ./peers -md ../docs/peers.md -->\n", "<!-- end -->\n"

// peer is a library, used as in its documentation.
type peer struct {
	name     string
	language string
	lib      string // its name in the program
	server   string
	check    string // the call behind "asked"
}

// urlFor returns the Holdfast URL of the library's server, if Holdfast supports it.
func (p *peer) urlFor(addr string) string {
	switch p.server {
	case "redis":
		if p.lib == "redisson" {
			return "redis://" + addr + "?format=redisson"
		}
		return "redis://" + addr + "?bare=true"
	case "etcd":
		return "etcd://" + addr
	case "zookeeper":
		return "zk://" + addr
	default:
		return "postgres://holdfast@" + addr + "/postgres?sslmode=disable"
	}
}

var peers = []*peer{
	{"Holdfast", "go", "holdfast-redis", "redis", "`lease.Context()`"},
	{"redsync, go-redis", "go", "redsync-goredis", "redis", "`Until()`"},
	{"redsync, rueidis", "go", "redsync-rueidis", "redis", "`Until()`"},
	{"redislock", "go", "redislock", "redis", "`TTL`"},
	{"rueidislock", "go", "rueidislock", "redis", "the context"},
	{"redis-py", "python", "redis-py", "redis", "`owned()`"},
	{"pottery", "python", "pottery", "redis", "`locked()`"},
	{"node-redlock `acquire`", "node", "node-redlock", "redis", "`expiration`"},
	{"node-redlock `using`", "node", "node-redlock-using", "redis", "the signal"},
	{"@sesamecare-oss/redlock `using`", "node", "sesamecare-using", "redis", "the signal"},
	{"redis-semaphore", "node", "redis-semaphore", "redis", "`isAcquired`"},
	{"Redisson `RLock`", "java", "redisson", "redis", "`isHeldByCurrentThread()`"},
	{"ShedLock, Redis", "java", "shedlock-redis", "redis", ""},
	{"ShedLock, Redis, `safeUpdate(true)`", "java", "shedlock-redis-safe", "redis", ""},
	{"Spring `RedisLockRegistry`", "java", "spring", "redis", ""},
	{"Holdfast", "go", "holdfast-postgres", "postgres", "`lease.Context()`"},
	{"pglock", "go", "pglock", "postgres", "`IsReleased()`"},
	{"ShedLock, JDBC, one host", "java", "shedlock-jdbc", "postgres", ""},
	{"ShedLock, JDBC, several hosts", "java", "shedlock-jdbc-hosts", "postgres", ""},
	{"Holdfast", "go", "holdfast-etcd", "etcd", "`lease.Context()`"},
	{"etcd `concurrency.Mutex`", "go", "etcd-concurrency", "etcd", "`Session.Done()`"},
	{"client-go `leaderelection`", "kubernetes", "leaderelection", "kubernetes", "`IsLeader()`"},
	{"Holdfast", "go", "holdfast-zookeeper", "zookeeper", "`lease.Context()`"},
	{"go-zookeeper `zk.Lock`", "go", "zk.Lock", "zookeeper", ""},
	{"kazoo", "python", "kazoo", "zookeeper", "`is_acquired`"},
	{"Curator `InterProcessMutex`", "java", "curator", "zookeeper", "`isOwnedByCurrentThread()`"},
}

// modules are the modules of the Go libraries.
var modules = map[string]string{
	"redsync-goredis": "github.com/go-redsync/redsync/v4", "redsync-rueidis": "github.com/go-redsync/redsync/v4",
	"redislock": "github.com/bsm/redislock", "rueidislock": "github.com/redis/rueidis", "pglock": "cirello.io/pglock",
	"etcd-concurrency": "go.etcd.io/etcd/client/v3", "zk.Lock": "github.com/go-zookeeper/zk",
}

// goVersion returns the version of a Go library; for Holdfast, the version of the working tree.
func goVersion(library string) string {
	if strings.HasPrefix(library, "holdfast-") {
		return "this one"
	}
	return cmp.Or(tool.ModuleVersion(modules[library]), "?")
}

// settings are the flags of the command line.
type settings struct {
	only, scenes, page string
	at                 int
}

func main() {
	if words := strings.Fields(os.Getenv(serveVariable)); len(words) == 4 {
		var n int
		fmt.Sscan(words[3], &n)
		tool.Exit("peers", serveLibrary(words[0], words[1], words[2], n))
	}
	var s settings
	flag.StringVar(&s.only, "only", "", "run the rows alone whose name or server has one of these `texts`, separated by commas")
	flag.StringVar(&s.scenes, "scenes", "", "run these `scenes` alone: work, hang, stop, limit, empty, shared")
	flag.StringVar(&s.page, "md", "", "the `file` of the page, between whose marks the table goes; empty: print it")
	flag.IntVar(&s.at, "at-once", 4, "how many scenes run at a time")
	flag.Parse()
	tool.Run("peers", func(ctx context.Context) error { return measurePeers(ctx, &s) })
}

// row collects the cells of a peer.
type row struct {
	*peer
	mu              sync.Mutex // guards the fields below
	version, server string
	cells           []string
	failed          error
}

// measurePeers measures the chosen libraries in the chosen scenes, and writes the table.
func measurePeers(ctx context.Context, s *settings) error {
	chosen := slices.Clone(scenes)
	if s.scenes != "" {
		chosen = slices.DeleteFunc(chosen, func(c scene) bool { return !slices.Contains(strings.Split(s.scenes, ","), c.name) })
	}
	var rows []*row
	for _, p := range peers {
		if matchesText(p, s.only) {
			rows = append(rows, &row{peer: p, version: "?", server: p.server, cells: make([]string, len(chosen))})
		}
	}
	for _, r := range rows {
		if r.language == "kubernetes" {
			foreign.Libraries(r.language) // a row without its libraries reports that
		}
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, max(1, s.at))
	for _, r := range rows {
		for i, c := range chosen {
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				r.playScene(ctx, i, c)
			})
		}
	}
	running.Wait()
	var failed error
	for _, r := range rows {
		failed = errors.Join(failed, r.failed)
	}
	if s.page == "" {
		fmt.Print(headingOf(chosen))
		for _, r := range rows {
			fmt.Print(r)
		}
		return failed
	}
	return errors.Join(failed, writePage(s.page, chosen, rows))
}

// matchesText reports whether the peer's name or server contains one of the texts; empty matches all.
func matchesText(p *peer, texts string) bool {
	for text := range strings.SplitSeq(texts, ",") {
		if strings.Contains(strings.ToLower(p.name+" "+p.server), strings.ToLower(text)) {
			return true
		}
	}
	return false
}

// playScene runs one scene of the row.
func (r *row) playScene(ctx context.Context, column int, c scene) {
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	since := time.Now()
	cell, err := func() (string, error) {
		s, err := openStage(ctx, r.peer)
		if err != nil {
			return "", err
		}
		r.mu.Lock()
		r.version, r.server = s.holder.version, s.servers[0].version
		r.mu.Unlock()
		cell, err := c.run(ctx, s)
		return cell, errors.Join(err, s.close())
	}()
	if errors.Is(err, foreign.ErrMissing) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", r.name, err)
		cell, err = "not run", nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		cell = "?"
		r.failed = errors.Join(r.failed, fmt.Errorf("%s, %s: %w", r.name, c.title, err))
	}
	r.cells[column] = cell
	fmt.Fprintf(os.Stderr, "%s (%s), %s: %s (%.0f s) %v\n", r.name, r.peer.server, c.name, cell, time.Since(since).Seconds(), err)
}

func headingOf(chosen []scene) string {
	var b strings.Builder
	b.WriteString("| library | version | server | \"asked\" |")
	for _, c := range chosen {
		b.WriteString(" " + c.title + " |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", 4+len(chosen)) + "\n")
	return b.String()
}

// String returns the line of the table.
func (r *row) String() string {
	return fmt.Sprintf("%s%s | %s | %s | %s |\n", r.linePrefix(), r.version, r.server, cmp.Or(r.check, "–"), strings.Join(r.cells, " | "))
}

// linePrefix returns the beginning of the row's line, which no other line for the same kind of server has.
func (r *row) linePrefix() string { return "| " + r.name + " | " }

// writePage writes the rows between the marks of the page. Rows that were not run stay.
func writePage(page string, chosen []scene, rows []*row) error {
	return tool.Page{Path: page, Begin: tableStart, End: tableEnd}.Fill(func(old string) string {
		var table strings.Builder
		table.WriteString(headingOf(scenes))
		for _, p := range peers {
			line := ""
			for was := range strings.Lines(old) {
				if (&row{peer: p}).isLine(was) {
					line = was
				}
			}
			for _, r := range rows {
				if r.peer == p && r.failed == nil {
					line = r.overwriteLine(line, chosen)
				}
			}
			table.WriteString(line)
		}
		return table.String()
	})
}

// overwriteLine returns the line of the row, with the cells of an old line for scenes that were not run.
func (r *row) overwriteLine(line string, chosen []scene) string {
	old := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), " |"), " | ")
	whole := &row{peer: r.peer, version: r.version, server: r.server}
	for i, c := range scenes {
		cell := "?"
		if j := slices.IndexFunc(chosen, func(c2 scene) bool { return c2.name == c.name }); j >= 0 {
			cell = r.cells[j]
		} else if 4+i < len(old) {
			cell = old[4+i]
		}
		whole.cells = append(whole.cells, cell)
	}
	return whole.String()
}

// isLine reports whether the line of a table belongs to the row.
func (r *row) isLine(line string) bool {
	cells := strings.Split(line, " | ")
	return strings.HasPrefix(line, r.linePrefix()) && len(cells) > 2 && strings.HasPrefix(strings.ToLower(cells[2]), r.peer.server)
}
