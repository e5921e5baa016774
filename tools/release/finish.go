package main

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed holdfast.rb.tmpl
var formula string

//go:embed Containerfile
var containerfile string

// finishRelease writes what is made of all that stands in out: the notes, the container's definition, the formula, the checksums.
func finishRelease(s *source, out string) error {
	sums, err := checksumsIn(out)
	if err != nil {
		return err
	}
	var list strings.Builder
	byName := make(map[string]string)
	for _, sum := range sums {
		fmt.Fprintf(&list, "%x  %s\n", sum.hash, sum.name)
		byName[sum.name] = fmt.Sprintf("%x", sum.hash)
	}
	rb, err := homebrewFormula(strings.TrimPrefix(s.version, "v"), byName)
	for name, text := range map[string]string{"holdfast.rb": rb, "SHA256SUMS": list.String(), "Containerfile": containerfile, "NOTES.md": s.notes} {
		err = errors.Join(err, os.WriteFile(filepath.Join(out, name), []byte(text), 0o644))
	}
	return err
}

// homebrewFormula returns the formula. Its sums are those of archives; one that was not built leaves a place that brew refuses.
func homebrewFormula(version string, sums map[string]string) (string, error) {
	tmpl, err := template.New("formula").Parse(formula)
	if err != nil {
		return "", err
	}
	var rb strings.Builder
	err = tmpl.Execute(&rb, struct {
		Version, Home string
		Sums          map[string]string
	}{version, homepage, sums})
	return rb.String(), err
}

type checksum struct {
	name string
	hash [sha256.Size]byte
}

// checksumsIn returns the checksums of the files in dir, sorted by name.
func checksumsIn(dir string) (sums []checksum, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		text, failed := os.ReadFile(filepath.Join(dir, entry.Name()))
		sums, err = append(sums, checksum{entry.Name(), sha256.Sum256(text)}), errors.Join(err, failed)
	}
	return sums, err
}
