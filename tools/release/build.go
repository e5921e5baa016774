package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// shells lists the shells for which holdfast writes completions, with the names of their files.
var shells = map[string]string{"bash": "holdfast.bash", "zsh": "_holdfast", "fish": "holdfast.fish", "powershell": "holdfast.ps1"}

// tags leave out the pages on which gRPC would show its requests. With them come templates, and then the linker has to keep
// every method: a fifth of the program.
const tags = "grpcnotrace"

// product has the files for the users of one system.
type product struct {
	*source
	os, arch string
	program  []byte
	manual   []file // holdfast.1 and so on
	shells   []file // completions
	license  []byte
	notices  []byte // of what is linked in
}

// file is a file of an archive or a package.
type file struct {
	name string
	mode fs.FileMode
	text []byte
}

func (p *product) productName() string {
	return fmt.Sprintf("holdfast_%s_%s_%s", strings.TrimPrefix(p.version, "v"), p.os, p.arch)
}

// buildTargets builds the command for each target, with the go command's folders in work, and writes what users download to out.
func buildTargets(s *source, proxy, work, out string, targets []string) error {
	g, err := newGo(s, proxy, work)
	if err != nil {
		return err
	}
	manual, err := g.makeManual(filepath.Join(work, "manual"))
	if err != nil {
		return err
	}
	completions, err := g.makeCompletions(filepath.Join(work, "holdfast"))
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(s.dir, "LICENSE"))
	if err != nil {
		return err
	}
	for _, target := range targets {
		system, arch, _ := strings.Cut(target, "/")
		p := &product{source: s, os: system, arch: arch, manual: manual, shells: completions, license: license}
		program := filepath.Join(out, "bin", system+"_"+arch, "holdfast")
		if system == "windows" {
			program += ".exe"
		}
		target := []string{"GOOS=" + system, "GOARCH=" + arch}
		if _, err := g.run(target, "build", "-trimpath", "-buildvcs=true", "-tags="+tags, "-ldflags=-s -w", "-o", program, "."); err != nil {
			return err
		}
		if p.program, err = os.ReadFile(program); err != nil {
			return err
		}
		if p.notices, err = g.collectNotices(program); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(program), noticesName), p.notices, 0o644); err != nil { // for the image
			return err
		}
		if err := p.writePackages(out, program); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return finishRelease(s, out)
}

// writePackages writes the archive, the parts list and the packages of p.
func (p *product) writePackages(out, program string) error {
	ext, archive := ".tar.gz", writeTarball
	if p.os == "windows" {
		ext, archive = ".zip", writeZip
	}
	err1 := createArchive(filepath.Join(out, p.productName()+ext), archive, p.archiveFiles(), p.date)
	err2 := writeParts(filepath.Join(out, p.productName()+".cdx.json"), program, p.source)
	if p.os != "linux" {
		return errors.Join(err1, err2)
	}
	return errors.Join(err1, err2, p.writeDeb(out), p.writeRPM(out))
}

// archiveFiles returns the files of an archive, in its folder.
func (p *product) archiveFiles() []file {
	program := file{"holdfast", 0o755, p.program}
	if p.os == "windows" {
		program.name = "holdfast.exe"
	}
	all := []file{program, {"LICENSE", 0o644, p.license}, {noticesName, 0o644, p.notices}}
	for _, f := range p.manual {
		all = append(all, file{"man/" + f.name, f.mode, f.text})
	}
	for _, f := range p.shells {
		all = append(all, file{"completions/" + f.name, f.mode, f.text})
	}
	for i := range all {
		all[i].name = p.productName() + "/" + all[i].name
	}
	return all
}

// goCommand is the go command for a build of cmd/holdfast as users get it: from published modules, not from go.work.
type goCommand struct {
	dir string
	env []string
}

// newGo lets the go command take the tagged modules from proxy, and others from where it usually looks. Its module cache is of
// its own, so that a rehearsal leaves no version there that was never published.
func newGo(s *source, proxy, work string) (*goCommand, error) {
	usual, err := outputOf(exec.Command("go", "env", "GOMODCACHE", "GOPROXY"))
	if err != nil {
		return nil, err
	}
	cache, proxies, _ := strings.Cut(usual, "\n")
	cache = filepath.Join(cache, "cache", "download")
	return &goCommand{filepath.Join(s.dir, "cmd", "holdfast"), append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-modcacherw", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOTOOLCHAIN=local",
		"GOPATH="+work, "GOMODCACHE="+filepath.Join(work, "mod"), "GOPROXY=file://"+proxy+",file://"+cache+","+proxies,
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.date.Unix()),
	)}, nil
}

func (g *goCommand) run(env []string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = g.dir, append(slices.Clone(g.env), env...)
	return outputOf(cmd)
}

// collectNotices returns the notices of what program consists of.
func (g *goCommand) collectNotices(program string) ([]byte, error) {
	folders, err := g.run(nil, "env", "GOMODCACHE", "GOROOT")
	if err != nil {
		return nil, err
	}
	cache, goroot, _ := strings.Cut(folders, "\n")
	return collectNotices(program, cache, strings.TrimSpace(goroot))
}

// makeManual makes the manual pages, in dir.
func (g *goCommand) makeManual(dir string) (pages []file, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := g.run(nil, "run", "-trimpath", "./internal/manual", dir); err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.1"))
	for _, name := range names {
		text, failed := os.ReadFile(name)
		pages, err = append(pages, file{filepath.Base(name), 0o644, text}), errors.Join(err, failed)
	}
	return pages, err
}

// makeCompletions returns the completions for each shell, as the command at program, which is built for this machine, prints them.
func (g *goCommand) makeCompletions(program string) (all []file, err error) {
	if _, err := g.run(nil, "build", "-trimpath", "-buildvcs=false", "-o", program, "."); err != nil {
		return nil, err
	}
	for shell, name := range shells {
		text, failed := outputOf(exec.Command(program, "completion", shell))
		all, err = append(all, file{name, 0o644, []byte(text + "\n")}), errors.Join(err, failed)
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return all, err
}
