//go:build linux

package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const pages = "../../docs"

// products maps names of servers in pages to those in the table.
var products = map[string]string{
	"Valkey": "valkey", "Redis": "redis", "Redict": "redict", "etcd": "etcd", "ZooKeeper": "zookeeper", "PostgreSQL": "postgres",
	"MySQL": "mysql", "MariaDB": "mariadb", "PgBouncer": "pgbouncer", "pgpool-II": "pgpool",
}

// pagesOfProduct lists the pages that name every version of some products.
var pagesOfProduct = map[string][]string{
	"choosing.md":   {"valkey", "redis", "redict", "etcd", "zookeeper", "postgres", "mysql", "mariadb"},
	"your-redis.md": {"valkey", "redis", "redict"},
	"etcd.md":       {"etcd"},
	"zookeeper.md":  {"zookeeper"},
	"postgres.md":   {"postgres", "pgbouncer", "pgpool"},
	"sql.md":        {"mysql", "mariadb"},
}

var (
	tableName = regexp.MustCompile(`\b([a-z]+)-([0-9]+(?:\.[0-9]+)+)`)
	toTable   = regexp.MustCompile(`\[([^\]]*[0-9][^\]]*)\]\(servers\.md\)`)
	word      = regexp.MustCompile(`[A-Za-z][A-Za-z-]*|[0-9]+(?:\.[0-9]+)+`)
)

// The test reads each link to servers.md whose text names versions, as in [etcd 3.5.30 and
// 3.6.16](servers.md).
func TestPageVersionsMatchTable(t *testing.T) {
	table, err := pageAt(filepath.Join(pages, "servers.md")).Table()
	if err != nil {
		t.Fatal(err)
	}
	ran := make(map[string]bool)
	for name := range linesByRow(table) {
		for _, m := range tableName.FindAllString(name, -1) {
			ran[m] = true
		}
	}
	files, err := filepath.Glob(filepath.Join(pages, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		page := filepath.Base(file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		named := namedVersions(string(text))
		for _, version := range slices.Sorted(maps.Keys(named)) {
			if !ran[version] {
				t.Errorf("%s names %s, which the table of servers.md does not have", page, version)
			}
		}
		for _, version := range slices.Sorted(maps.Keys(ran)) {
			product, _, _ := strings.Cut(version, "-")
			if slices.Contains(pagesOfProduct[page], product) && !named[version] {
				t.Errorf("%s does not name %s, which is in the table: write it into its link to servers.md", page, version)
			}
		}
	}
}

// namedVersions returns the versions in the links to the table, in the table's form.
func namedVersions(text string) map[string]bool {
	named := make(map[string]bool)
	for _, link := range toTable.FindAllStringSubmatch(text, -1) {
		product := ""
		for _, w := range word.FindAllString(link[1], -1) {
			switch {
			case products[w] != "":
				product = products[w]
			case w[0] <= '9':
				named[product+"-"+w] = true
			}
		}
	}
	return named
}

func TestLinkNamesEachVersionOfList(t *testing.T) {
	got := namedVersions("It ran on [etcd 3.5.30,\n3.6.16 and pgpool-II 4.7.3](servers.md), and [others](servers.md) [1.2](etcd.md).")
	want := []string{"etcd-3.5.30", "etcd-3.6.16", "pgpool-4.7.3"}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}
