package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// source is the tagged commit of a release, in a clone.
type source struct {
	dir, version string
	commit       string
	date         time.Time
	tagged       bool // the tag existed before
	modules      []*unit
	notes        string // the section of CHANGELOG.md
}

// cutRelease clones the repository at root into dir, and creates the commit and the tags of version there,
// unless they exist.
func cutRelease(root, dir, version string) (*source, error) {
	s := &source{dir: dir, version: version}
	_, err := runGit(root, nil, "rev-parse", "-q", "--verify", "refs/tags/"+version)
	s.tagged = err == nil
	if !s.tagged {
		if changes, err := runGit(root, nil, "status", "--porcelain"); err != nil || changes != "" {
			return nil, errors.Join(err, fmt.Errorf("there are changes that are not committed; a release is made of commits:\n%s", changes))
		}
	}
	if _, err := runGit(".", nil, "clone", "-q", "--no-hardlinks", root, dir); err != nil {
		return nil, err
	}
	if s.tagged {
		_, err = runGit(dir, nil, "checkout", "-q", version)
	} else {
		err = s.makeCommit(root)
	}
	if err != nil {
		return nil, err
	}
	return s, s.readCommit()
}

// makeCommit creates the commit and the tags.
func (s *source) makeCommit(root string) error {
	last, err := runGit(s.dir, nil, "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), last), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	if err := s.updateChangelog(time.Unix(seconds, 0).UTC()); err != nil {
		return err
	}
	if err := s.updateRequirements(); err != nil {
		return err
	}
	if err := s.updateSums(); err != nil {
		return err
	}
	env := commitIdentity(root, fmt.Sprintf("%d +0000", seconds))
	if _, err := runGit(s.dir, env, "commit", "-qam", "release: "+s.version); err != nil {
		return err
	}
	_, all, err := readWorkspace(s.dir)
	for _, m := range publicModules(all) {
		_, failed := runGit(s.dir, env, "tag", "-a", "-m", m.path+" "+s.version, m.tagFor(s.version))
		err = errors.Join(err, failed)
	}
	return err
}

// commitIdentity returns the author and the time of the commit.
func commitIdentity(root, date string) (env []string) {
	for _, key := range []string{"name", "email"} {
		value, _ := runGit(root, nil, "config", "user."+key) // empty: the environment has it, or git reports what is missing
		for _, who := range []string{"AUTHOR", "COMMITTER"} {
			if name := "GIT_" + who + "_" + strings.ToUpper(key); value != "" && os.Getenv(name) == "" {
				env = append(env, name+"="+value)
			}
		}
	}
	return append(env, "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date)
}

// readCommit reads the version data of the tagged commit.
func (s *source) readCommit() (err error) {
	fields, err := runGit(s.dir, nil, "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, stamp, _ := strings.Cut(fields, " ")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return err
	}
	s.commit, s.date = commit, time.Unix(seconds, 0).UTC()
	if _, s.modules, err = readWorkspace(s.dir); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	_, s.notes, err = findSection(string(text), strings.TrimPrefix(s.version, "v"))
	return err
}

// findSection returns the text of a section of a changelog, and the text before it.
func findSection(text, name string) (before, notes string, err error) {
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(name) + `\].*\n`).FindStringIndex(text)
	if heading == nil {
		return "", "", fmt.Errorf("CHANGELOG.md has no section [%s]", name)
	}
	notes = text[heading[1]:]
	if next := strings.Index(notes, "\n## ["); next >= 0 {
		notes = notes[:next]
	}
	if notes = strings.TrimSpace(notes); notes == "" {
		return "", "", fmt.Errorf("the section [%s] of CHANGELOG.md is empty: say what is new, and for whom", name)
	}
	return text[:heading[1]], notes + "\n", nil
}

// updateChangelog renames the section of unreleased changes to the version.
func (s *source) updateChangelog(date time.Time) error {
	name := filepath.Join(s.dir, "CHANGELOG.md")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, _, err := findSection(string(text), "Unreleased")
	if err != nil {
		return err
	}
	heading := fmt.Sprintf("\n## [%s] - %s\n", strings.TrimPrefix(s.version, "v"), date.Format(time.DateOnly))
	return os.WriteFile(name, []byte(before+heading+string(text)[len(before):]), 0o644)
}

// updateRequirements makes the modules require each other at the version.
func (s *source) updateRequirements() error {
	work, all, err := readWorkspace(s.dir)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(work.Replace) {
		if path, dir := r.Old.Path, r.New.Path; isOurs(path) {
			err1 := work.DropReplace(path, r.Old.Version) // this empties r
			err2 := work.AddReplace(path, s.version, dir, "")
			err = errors.Join(err, err1, err2)
		}
	}
	work.Cleanup()
	err1 := os.WriteFile(filepath.Join(s.dir, "go.work"), modfile.Format(work.Syntax), 0o644)
	err = errors.Join(err, err1)
	for _, m := range all {
		for _, path := range m.requiredSiblings() {
			err = errors.Join(err, m.file.AddRequire(path, s.version))
		}
		text, err1 := m.file.Format()
		err = errors.Join(err, err1, os.WriteFile(filepath.Join(s.dir, m.dir, "go.mod"), text, 0o644))
	}
	return err
}

// updateSums writes into each go.sum the hashes that the modules will have. Each module follows the modules
// that it requires, so their hashes are known.
func (s *source) updateSums() error {
	_, all, err := readWorkspace(s.dir)
	if err != nil {
		return err
	}
	lines := make(map[string]string) // of go.sum, by the path of their module
	for _, m := range publicModules(all) {
		var own strings.Builder
		for _, path := range m.requiredSiblings() {
			own.WriteString(lines[path])
		}
		if err := setSums(filepath.Join(s.dir, m.dir, "go.sum"), own.String()); err != nil {
			return err
		}
		if lines[m.path], err = s.sumLinesOf(m); err != nil {
			return err
		}
	}
	return nil
}

// setSums replaces the lines about the project in a go.sum.
func setSums(name, lines string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if path, _, _ := strings.Cut(line, " "); !isOurs(path) {
			kept.WriteString(line)
		}
	}
	return os.WriteFile(name, []byte(kept.String()+lines), 0o644)
}

// sumLinesOf returns the lines of go.sum about m.
func (s *source) sumLinesOf(m *unit) (string, error) {
	temp, err := os.CreateTemp("", "holdfast-module-")
	if err != nil {
		return "", err
	}
	defer os.Remove(temp.Name())
	if err := errors.Join(s.writeModuleZip(m, temp), temp.Close()); err != nil {
		return "", err
	}
	whole, err1 := dirhash.HashZip(temp.Name(), dirhash.Hash1)
	mod, err2 := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(filepath.Join(s.dir, m.dir, "go.mod")) })
	return fmt.Sprintf("%[1]s %[2]s %[3]s\n%[1]s %[2]s/go.mod %[4]s\n", m.path, s.version, whole, mod), errors.Join(err1, err2)
}

// writeModuleZip writes the archive of m as the go command makes it from a tag: a module without a license
// gets the license of the repository.
func (s *source) writeModuleZip(m *unit, w io.Writer) error {
	dir := filepath.Join(s.dir, m.dir)
	license := filepath.Join(dir, "LICENSE")
	if _, err := os.Stat(license); errors.Is(err, os.ErrNotExist) {
		text, err := os.ReadFile(filepath.Join(s.dir, "LICENSE"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(license, text, 0o644); err != nil {
			return err
		}
		defer os.Remove(license)
	}
	return zip.CreateFromDir(w, module.Version{Path: m.path, Version: s.version}, dir)
}

// publishModules writes a module proxy with the tagged modules into dir.
func (s *source) publishModules(dir string) error {
	for _, m := range publicModules(s.modules) {
		versions := filepath.Join(dir, filepath.FromSlash(path.Join(m.path, "@v")))
		if err := os.MkdirAll(versions, 0o755); err != nil {
			return err
		}
		mod, err := os.ReadFile(filepath.Join(s.dir, m.dir, "go.mod"))
		if err != nil {
			return err
		}
		var archive bytes.Buffer
		if err := s.writeModuleZip(m, &archive); err != nil {
			return err
		}
		info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, s.version, s.date.Format(time.RFC3339))
		for name, text := range map[string][]byte{
			"list": []byte(s.version + "\n"), s.version + ".info": []byte(info), s.version + ".mod": mod, s.version + ".zip": archive.Bytes(),
		} {
			if err := os.WriteFile(filepath.Join(versions, name), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// runGit runs git in dir, with env added to the environment, and returns its output.
func runGit(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	return outputOf(cmd)
}

// outputOf runs a command and returns its output. Its error has the text on stderr.
func outputOf(cmd *exec.Cmd) (string, error) {
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, log.String())
	}
	return strings.TrimSpace(out.String()), nil
}
