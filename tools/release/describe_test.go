package main

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The test describes its own program.
func TestNoticesNameEveryLinkedModule(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folders, err := outputOf(exec.Command("go", "env", "GOMODCACHE", "GOROOT"))
	if err != nil {
		t.Fatal(err)
	}
	cache, goroot, _ := strings.Cut(folders, "\n")
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	text, err := collectNotices(info, cache, goroot)
	if err != nil {
		t.Fatal(err)
	}
	linked := 0
	for _, m := range info.Deps {
		if isOurs(m.Path) {
			continue
		}
		linked++
		if !strings.Contains(string(text), "\n"+m.Path+" "+m.Version+": ") {
			t.Errorf("no notice of %s %s", m.Path, m.Version)
		}
	}
	if linked == 0 || !strings.Contains(string(text), "the Go standard library go1") {
		t.Errorf("%d modules, and for Go: %.200s", linked, text)
	}
}

func TestModuleWithoutLicenseStopsRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "README"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := addNotices(new(strings.Builder), "example.com/m v1.0.0", dir); err == nil || !strings.Contains(err.Error(), "example.com/m v1.0.0 has no license") {
		t.Errorf("%v, want an error that names the module", err)
	}
}
