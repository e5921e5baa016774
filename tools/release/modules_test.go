package main

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

const repository = "../.."

func TestUsersCanInstallEveryModule(t *testing.T) {
	t.Parallel()
	work, all, err := readWorkspace(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range moduleFaults(work, all) {
		t.Error(fault)
	}
}

func TestUninstallableModuleIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ work, mod, want string }{
		"replace":  {"", "replace github.com/holdfast-go/holdfast => ../\n", "go install refuses"},
		"network":  {"", "require github.com/holdfast-go/holdfast v0.1.0\n", "has no replace line"},
		"versions": {"", "require (\n\tgithub.com/holdfast-go/holdfast v0.1.0\n\tgithub.com/holdfast-go/holdfast/otel v0.2.0\n)\n", "at 2 versions"},
		"sound":    {"replace github.com/holdfast-go/holdfast v0.1.0 => ./\n", "require github.com/holdfast-go/holdfast v0.1.0\n", ""},
	} {
		work, err := modfile.ParseWork("go.work", []byte("go 1.26\n"+c.work), nil)
		if err != nil {
			t.Fatal(err)
		}
		file, err := modfile.Parse("go.mod", []byte("module github.com/holdfast-go/holdfast/etcd\n"+c.mod), nil)
		if err != nil {
			t.Fatal(err)
		}
		found := strings.Join(moduleFaults(work, []*unit{{dir: "etcd", path: file.Module.Mod.Path, file: file}}), "\n")
		if c.want == "" && found != "" || !strings.Contains(found, c.want) {
			t.Errorf("%s: found %q, want %q", name, found, c.want)
		}
	}
}

func TestModuleIsTaggedAfterItsRequirements(t *testing.T) {
	t.Parallel()
	_, all, err := readWorkspace(repository)
	if err != nil {
		t.Fatal(err)
	}
	place := func(path string) int {
		return slices.IndexFunc(all, func(m *unit) bool { return m.path == path })
	}
	for _, m := range all {
		for _, required := range m.requiredSiblings() {
			if place(required) > place(m.path) {
				t.Errorf("%s comes before %s, which it requires", m.path, required)
			}
		}
	}
	if tags := publicModules(all); tags[0].tagFor("v0.1.0") != "v0.1.0" || place(project+"/cmd/holdfast") < place(project+"/etcd") {
		t.Errorf("order = %v", tags)
	}
}
