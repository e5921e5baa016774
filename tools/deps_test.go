package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFolderIsNotProgram checks that tools/deps searches only PATH for programs: this repository has a folder
// named etcd.
func TestFolderIsNotProgram(t *testing.T) {
	text, err := os.ReadFile("deps")
	if err != nil {
		t.Fatal(err)
	}
	needs := regexp.MustCompile(`(?m)^([a-z-]+) +([a-z-]+)$`).FindAllStringSubmatch(string(text), -1)
	if len(needs) < 10 {
		t.Fatalf("%d programs in the list", len(needs))
	}
	work, bin := t.TempDir(), t.TempDir()
	for _, need := range needs {
		if err := os.Mkdir(filepath.Join(work, need[1]), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The test's machine has only bash, and its user may not install. Its folders differ from those of this
	// repository.
	for name, does := range map[string]string{"apt-get": "exit 1", "id": "echo 1000"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+does+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bash, "-c", regexp.MustCompile(`(?m)PATH=\$PATH:.*?(;|$)`).ReplaceAllString(string(text), ":$1"), "tools/deps")
	cmd.Dir, cmd.Env = work, []string{"PATH=" + bin}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("deps reports nothing missing:\n%s", out)
	}
	for _, need := range needs {
		if !strings.Contains(string(out), need[2]) {
			t.Errorf("%s is not reported as missing:\n%s", need[2], out)
		}
	}
}
