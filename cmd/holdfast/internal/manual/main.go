// Manual writes the manual pages of holdfast and its commands into a folder:
//
//	manual DIR
//
// The pages have the date of SOURCE_DATE_EPOCH.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(64)
	}
	if err := pages(cli.Command(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pages writes the page of cmd and of each command below it.
func pages(cmd *cobra.Command, dir string) error {
	if cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
		return nil // their text is on the parent's page
	}
	var page bytes.Buffer
	cmd.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Source: "Holdfast", Manual: "Holdfast"}
	err := doc.GenMan(cmd, header, &page)
	text := bytes.Replace(page.Bytes(), []byte(header.Date.Format(`"Jan 2006"`)), []byte(header.Date.Format(`"2006-01-02"`)), 1) // the date format of mandoc
	for _, below := range cmd.Commands() {
		err = errors.Join(err, pages(below, dir))
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	return errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o644))
}
