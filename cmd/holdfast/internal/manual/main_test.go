package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

func TestEveryCommandHasAPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := cli.Command()
	if err := pages(root, dir); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			continue
		}
		page, err := os.ReadFile(filepath.Join(dir, "holdfast-"+cmd.Name()+".1"))
		if err != nil || !strings.Contains(string(page), ".SH NAME\nholdfast-"+cmd.Name()) {
			t.Errorf("holdfast %s has no page: %v\n%s", cmd.Name(), err, page)
		}
		if head := regexp.MustCompile(`(?m)^\.TH "HOLDFAST-.*" "1" "[0-9]{4}-[0-9]{2}-[0-9]{2}" "Holdfast"`); !head.Match(page) {
			t.Errorf("holdfast %s has no date that mandoc reads:\n%.300s", cmd.Name(), page)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "holdfast-exit-codes.1"))
	if err != nil || !strings.Contains(string(page), "124") {
		t.Errorf("the page of exit codes lacks them: %v\n%s", err, page)
	}
}
