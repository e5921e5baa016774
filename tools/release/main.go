// Release makes a release of the whole repository from its last commit:
//
//	release -version v0.1.0 [-out DIR] [-tag] [-target OS/ARCH,...]
//
// It works in a clone. There it cuts the section of the version from CHANGELOG.md, lets the modules require each other at
// the version, commits, and tags every module. From the tags goreleaser builds what users download, into DIR. Two runs on one
// commit make the same bytes, as every date is the date of the commit: that of the last one, or SOURCE_DATE_EPOCH.
//
// Without -tag the repository stays as it is, and release prints what the tags would be. A version that has its tag already
// is built from that.
//
//	release -describe PROGRAM
//
// is for goreleaser: it writes the licenses and the list of the modules that PROGRAM consists of.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

func main() {
	var r release
	flag.StringVar(&r.root, "C", ".", "`folder` of the repository")
	flag.StringVar(&r.version, "version", "", "version to release, such as v0.1.0")
	flag.StringVar(&r.out, "out", "dist", "`folder` for what users download; it must not exist, or be empty")
	flag.BoolVar(&r.tag, "tag", false, "commit and tag in this repository; nothing is pushed")
	flag.StringVar(&r.targets, "target", "all", "`systems` to build for, such as linux/amd64,darwin/arm64; empty: only show the tags")
	program := flag.String("describe", "", "write what `program` consists of beside it, and nothing else")
	flag.Parse()
	run := r.run
	if *program != "" {
		run = func() error { return describeProgram(*program) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one run.
type release struct {
	root, version, out, targets string
	tag                         bool
}

func (r *release) run() error {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return fmt.Errorf("%q is no version such as v0.1.0", r.version)
	}
	if entries, err := os.ReadDir(r.out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty; remove it, or name another folder with -out", r.out)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "holdfast-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	s, err := cutRelease(r.root, filepath.Join(work, "source"), r.version)
	if err != nil {
		return err
	}
	if r.targets != "" {
		proxy := filepath.Join(work, "proxy")
		if err := s.publishModules(proxy); err != nil {
			return err
		}
		if err := buildDownloads(s, proxy, work, out, r.targets); err != nil {
			return err
		}
	}
	return r.makeTags(s)
}

// makeTags creates the tags, or prints them.
func (r *release) makeTags(s *source) error {
	var tags []string
	for _, m := range publicModules(s.modules) {
		tags = append(tags, m.tagFor(r.version))
	}
	if r.tag && !s.tagged {
		_, err1 := runGit(r.root, nil, "fetch", "-q", s.dir, "HEAD")
		_, err2 := runGit(r.root, nil, "merge", "-q", "--ff-only", "FETCH_HEAD")
		_, err3 := runGit(r.root, nil, "fetch", "-q", s.dir, "refs/tags/*:refs/tags/*")
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
	}
	fmt.Printf("%s: commit %s, of %s, in %s. Its tags, in this order:\n", r.version, s.commit[:12], s.date.Format("2006-01-02"), r.out)
	for _, tag := range tags {
		fmt.Println("  " + tag)
	}
	switch {
	case s.tagged:
	case r.tag:
		fmt.Printf("They are in this repository. Publish them: git push --atomic origin HEAD %s\n", strings.Join(tags, " "))
	default:
		fmt.Println("This was a rehearsal: nothing is committed or tagged. To do it: make release VERSION=" + r.version + " TAG=yes")
	}
	return nil
}
