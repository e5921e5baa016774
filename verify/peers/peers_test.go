//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPageHasEveryLibraryAndScene(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), tableStart)
	table, _, _ = strings.Cut(table, tableEnd)
	if !strings.HasPrefix(table, headingOf(scenes)) {
		t.Errorf("the table does not begin with\n%s", headingOf(scenes))
	}
	for _, p := range peers {
		var cells []string
		for line := range strings.Lines(table) {
			if (&row{peer: p}).isLine(line) {
				cells = strings.Split(strings.Trim(line, "| \n"), " | ")
			}
		}
		if len(cells) != 4+len(scenes) {
			t.Errorf("%s on %s has %d cells", p.name, p.server, len(cells))
		}
		for _, cell := range cells {
			if cell == "?" || cell == "not run" || cell == "" {
				t.Errorf("%s on %s has the cell %q", p.name, p.server, cell)
			}
		}
	}
}

func TestPartialRunKeepsOtherCells(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.md")
	cells := func(text string) (all []string) {
		for range scenes {
			all = append(all, text)
		}
		return all
	}
	var lines, want strings.Builder
	want.WriteString("before\n" + tableStart + headingOf(scenes))
	for i, p := range peers {
		r := &row{peer: p, version: "1", server: strings.ToUpper(p.server[:1]) + p.server[1:] + " 1", cells: cells("old")}
		lines.WriteString(r.String())
		if i == 1 {
			r.cells[2] = "new"
		}
		want.WriteString(r.String())
	}
	want.WriteString(tableEnd + "after\n")
	if err := os.WriteFile(page, []byte("before\n"+tableStart+lines.String()+tableEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := &row{peer: peers[1], version: "1", server: "Redis 1", cells: []string{"new"}}
	failed := &row{peer: peers[2], version: "1", server: "Redis 1", cells: []string{"?"}, failed: os.ErrClosed}
	if err := writePage(page, scenes[2:3], []*row{run, failed}); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(page); string(got) != want.String() {
		t.Errorf("page = \n%s\nwant\n%s", got, want.String())
	}
}
