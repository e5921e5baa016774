package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	"golang.org/x/mod/module"
)

// noticesName names the file with the notices of all modules that are linked into the program.
const noticesName = "THIRD_PARTY"

// describeProgram writes the notices of the modules in program beside it, and its parts list into the parent
// folder.
func describeProgram(program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	folders, err := outputOf(exec.Command("go", "env", "GOMODCACHE", "GOROOT"))
	if err != nil {
		return err
	}
	cache, goroot, _ := strings.Cut(folders, "\n")
	notices, err := collectNotices(info, cache, goroot)
	if err != nil {
		return err
	}
	dir := filepath.Dir(program)
	if err := os.WriteFile(filepath.Join(dir, noticesName), notices, 0o644); err != nil {
		return err
	}
	return writeParts(filepath.Dir(dir), info)
}

// noticeFile matches the files in a module's root that must be distributed with a binary.
var noticeFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents|copyright)`)

// collectNotices returns the licenses and notices of Go, in goroot, and of the foreign modules in a program,
// which the linker recorded in info. cache is the module cache of the build. A module without a license is an
// error.
func collectNotices(info *debug.BuildInfo, cache, goroot string) ([]byte, error) {
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

// A parts list (SBOM) in the format of CycloneDX 1.5.
type (
	partsList struct {
		Format     string   `json:"bomFormat"`
		Spec       string   `json:"specVersion"`
		Version    int      `json:"version"`
		Metadata   metadata `json:"metadata"`
		Components []part   `json:"components"`
	}
	metadata struct {
		Timestamp string `json:"timestamp"`
		Component part   `json:"component"`
	}
	part struct {
		Ref        string     `json:"bom-ref"`
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl"`
		Properties []property `json:"properties,omitempty"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// writeParts writes the list of the modules in a program, which the linker recorded in info, into dir.
func writeParts(dir string, info *debug.BuildInfo) error {
	command := partOf(&info.Main)
	command.Type = "application"
	settings := make(map[string]string)
	for _, setting := range info.Settings { // the system, the flags, the commit
		command.Properties = append(command.Properties, property{"go:build:" + setting.Key, setting.Value})
		settings[setting.Key] = setting.Value
	}
	list := partsList{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{settings["vcs.time"], command}}
	for _, m := range info.Deps {
		list.Components = append(list.Components, partOf(m))
	}
	list.Components = append(list.Components, partOf(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}))
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("holdfast_%s_%s_%s.cdx.json", strings.TrimPrefix(info.Main.Version, "v"), settings["GOOS"], settings["GOARCH"])
	return os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o644)
}

func partOf(m *debug.Module) part {
	if m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	p := part{Ref: purl, Type: "library", Name: m.Path, Version: m.Version, PURL: purl}
	if m.Sum != "" {
		p.Properties = []property{{"go:sum", m.Sum}}
	}
	return p
}
