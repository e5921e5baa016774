package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/module"
)

// noticesName names the file with the notices of all modules that are linked into the program.
const noticesName = "THIRD_PARTY"

// noticeFile matches the files in a module's root whose text has to go along with a binary.
var noticeFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents|copyright)`)

// collectNotices returns the licenses and notices of Go, in goroot, and of the foreign modules that program consists of, as the linker
// has noted it there; cache is the module cache that it was built from. A module without any is an error.
func collectNotices(program, cache, goroot string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("holdfast contains the software that follows, under the terms that stand with each.\n")
	if err := addNotices(&b, "the Go standard library "+info.GoVersion, goroot); err != nil {
		return nil, err
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if isOurs(m.Path) {
			continue
		}
		path, err1 := module.EscapePath(m.Path)
		version, err2 := module.EscapeVersion(m.Version)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%s %s is no module whose notices can be found", m.Path, m.Version)
		}
		if err := addNotices(&b, m.Path+" "+m.Version, filepath.Join(cache, path+"@"+version)); err != nil {
			return nil, err
		}
	}
	return []byte(b.String()), nil
}

// addNotices adds the notices of one module, in dir.
func addNotices(b *strings.Builder, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the notices of %s: %w", name, err)
	}
	found := false
	for _, e := range entries { // sorted by name, so that two builds agree
		if e.IsDir() || !noticeFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(b, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 80), name, e.Name(), strings.TrimSpace(string(text)))
	}
	if !found {
		return fmt.Errorf("%s has no license in %s: add the name of its file to noticeFile, or drop the module", name, dir)
	}
	return nil
}
