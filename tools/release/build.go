package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

// goreleaser makes the downloads, by .goreleaser.yaml. It is compiled outside this module, which would
// otherwise require 376 more modules.
const goreleaser = "github.com/goreleaser/goreleaser/v2@v2.15.1"

//go:embed holdfast.rb.tmpl
var formula string

//go:embed Containerfile
var containerfile string

// targetsLine matches the line of .goreleaser.yaml that lists the systems.
var targetsLine = regexp.MustCompile(`(?m)^( *targets: ).*$`)

// buildDownloads writes what users download to out. The go command has its folders in work; targets are systems such as linux/amd64,
// or "all" of them.
func buildDownloads(s *source, proxy, work, out, targets string) error {
	install := exec.Command("go", "install", goreleaser)
	install.Env = append(os.Environ(), "GOBIN="+work)
	if _, err := outputOf(install); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.dir, ".goreleaser.yaml"))
	if err != nil {
		return err
	}
	if targets != "all" {
		text = targetsLine.ReplaceAll(text, []byte("${1}["+strings.ReplaceAll(targets, "/", "_")+"]"))
	}
	config := filepath.Join(work, "goreleaser.yaml") // not in the clone: the program records whether its source has changes
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return err
	}
	self, err1 := os.Executable()
	env, err2 := buildEnv(s, proxy, filepath.Join(work, "go"))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(work, "goreleaser"), "release", "--config", config, "--skip=publish", "--timeout=3h")
	cmd.Dir, cmd.Env = s.dir, append(env, "GORELEASER_CURRENT_TAG="+s.version, "HOLDFAST_RELEASE_TOOL="+self)
	if _, err := outputOf(cmd); err != nil {
		return err
	}
	return collectDownloads(s, filepath.Join(s.dir, "dist"), out)
}

// buildEnv returns the environment in which cmd/holdfast is built like by a user: from published modules, not
// from go.work. The go command gets the tagged modules from proxy, and others from its usual source. It has a
// separate module cache, so that a rehearsal leaves no unpublished version in the usual one.
func buildEnv(s *source, proxy, work string) ([]string, error) {
	usual, err := outputOf(exec.Command("go", "env", "GOMODCACHE", "GOPROXY"))
	if err != nil {
		return nil, err
	}
	cache, proxies, _ := strings.Cut(usual, "\n")
	cache = filepath.Join(cache, "cache", "download")
	return append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-modcacherw", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOTOOLCHAIN=local",
		"GOPATH="+work, "GOMODCACHE="+filepath.Join(work, "mod"), "GOPROXY=file://"+proxy+",file://"+cache+","+proxies,
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.date.Unix()),
	), nil
}

// collectDownloads copies the files that goreleaser made from dist to out, except reports of this run, and
// adds the notes, the container's definition and the formula.
func collectDownloads(s *source, dist, out string) error {
	for _, report := range []string{"artifacts.json", "config.yaml", "metadata.json"} {
		if err := os.Remove(filepath.Join(dist, report)); err != nil {
			return err
		}
	}
	sums, err1 := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	err2 := os.CopyFS(out, os.DirFS(dist))
	rb, err3 := homebrewFormula(strings.TrimPrefix(s.version, "v"), string(sums))
	err := errors.Join(err1, err2, err3)
	for name, text := range map[string]string{"holdfast.rb": rb, "Containerfile": containerfile, "NOTES.md": s.notes} {
		err = errors.Join(err, os.WriteFile(filepath.Join(out, name), []byte(text), 0o644))
	}
	return err
}

// homebrewFormula returns the formula with the checksums of the archives. For an archive that was not built it
// has a placeholder that brew rejects. Goreleaser deprecates formulas in favor of casks, which macOS
// quarantines unless the program is signed.
func homebrewFormula(version, sums string) (string, error) {
	byName := make(map[string]string)
	for line := range strings.Lines(sums) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		byName[name] = sum
	}
	tmpl, err := template.New("formula").Parse(formula)
	if err != nil {
		return "", err
	}
	var rb strings.Builder
	err = tmpl.Execute(&rb, map[string]any{"Version": version, "Home": "https://" + project, "Sums": byName})
	return rb.String(), err
}
