package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// buildAll selects the manual rehearsal, which takes about twenty minutes and needs buildah.
var buildAll = flag.Bool("all", false, "build every target, the second time with an empty cache, and the image")

func TestMain(m *testing.M) {
	flag.Parse()
	for _, who := range []string{"AUTHOR", "COMMITTER"} { // of the commits in the tests
		os.Setenv("GIT_"+who+"_NAME", "tester")
		os.Setenv("GIT_"+who+"_EMAIL", "tester@localhost")
	}
	os.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	os.Unsetenv("SOURCE_DATE_EPOCH")
	code := m.Run()
	if cutIn != "" {
		os.RemoveAll(cutIn)
	}
	os.Exit(code)
}

// skipIfShort skips a test that compiles everything from scratch, as users do. That takes minutes of processor
// time.
func skipIfShort(t *testing.T) {
	t.Helper()
	if os.Getenv("HOLDFAST_RELEASE") == "" {
		t.Skip("make release makes releases, to test that")
	}
}

// cloneRepository returns a repository with one commit: the files of this repository as they are on the disk.
func cloneRepository(t *testing.T) string {
	t.Helper()
	skipIfShort(t)
	dir := t.TempDir()
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(repository, path) // both are relative
		switch {
		case err != nil:
			return err
		case rel == ".git" || d.Name() == "_artifacts" || rel == "dist":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(dir, rel), 0o755)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, rel), text, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
	inGit(t, dir, "init", "-q", "-b", "main")
	inGit(t, dir, "config", "gc.auto", "0")
	commitAll(t, dir)
	return dir
}

func commitAll(t *testing.T, dir string) {
	t.Helper()
	inGit(t, dir, "add", "-A")
	inGit(t, dir, "commit", "-qm", "as it is")
}

func inGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	text, err := runGit(dir, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// runProgram runs a program and returns its output.
func runProgram(t *testing.T, env []string, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), env...)
	text, err := outputOf(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// publishRelease returns a release of this repository that is cut but not built, and a proxy that serves it.
func publishRelease(t *testing.T) (s *source, proxy string) {
	t.Helper()
	skipIfShort(t)
	cutOnce.Do(func() {
		if cutIn, cutFailed = os.MkdirTemp("", "holdfast-release-test-"); cutFailed != nil {
			return
		}
		if cutSource, cutFailed = cutRelease(cloneRepository(t), filepath.Join(cutIn, "source"), "v0.1.0"); cutFailed == nil {
			cutFailed = cutSource.publishModules(filepath.Join(cutIn, "proxy"))
		}
	})
	if cutFailed != nil {
		t.Fatal(cutFailed)
	}
	return cutSource, filepath.Join(cutIn, "proxy")
}

// These variables keep the results of publishRelease for all tests.
var (
	cutOnce   sync.Once
	cutIn     string
	cutSource *source
	cutFailed error
)

// newUserEnv returns the environment of a user without any part of Holdfast, who gets modules from proxy.
func newUserEnv(t *testing.T, s *source, proxy string) (gopath string, env []string) {
	t.Helper()
	gopath = filepath.Join(t.TempDir(), "go")
	env, err := buildEnv(s, proxy, gopath)
	if err != nil {
		t.Fatal(err)
	}
	return gopath, append(env, "GOSUMDB=off")
}

func TestCommandInstallsFromProxy(t *testing.T) {
	t.Parallel()
	s, proxy := publishRelease(t)
	gopath, env := newUserEnv(t, s, proxy)
	install := []string{"install", project + "/cmd/holdfast@v0.1.0"}
	if *buildAll {
		env = append(env, "GOCACHE="+t.TempDir())
	} else {
		install = slices.Insert(install, 1, "-trimpath") // uses the packages that earlier tests compiled
	}
	begin := time.Now()
	runProgram(t, env, "go", install...)
	firstRun(t, begin, filepath.Join(gopath, "bin"))
	version := runProgram(t, nil, filepath.Join(gopath, "bin", "holdfast"), "--version")
	if !strings.HasPrefix(version, "holdfast v0.1.0 ") {
		t.Errorf("the installed command prints %q", version)
	}
}

// firstRun follows the first steps of the README with the holdfast in bin, and logs the time since begin.
func firstRun(t *testing.T, begin time.Time, bin string) {
	t.Helper()
	took := time.Since(begin)
	_, line, ok := strings.Cut(readFile(t, repository, "README.md"), "\nholdfast run ")
	line, _, _ = strings.Cut(line, "#")
	if !ok {
		t.Fatal("the README runs no command")
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOLDFAST_BACKEND=sqlite:" + filepath.Join(t.TempDir(), "locks.db")}
	begin = time.Now()
	got := runProgram(t, env, "sh", "-c", "printf '#!/bin/sh\necho reported $HOLDFAST_LOCK_TOKEN\n' >report.sh && chmod +x report.sh && holdfast run "+line)
	if token := strings.TrimPrefix(got, "reported "); token == got || token == "" {
		t.Errorf("the first run prints %q", got)
	}
	t.Logf("installed in %v, and the first run took %v", took.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
}

func TestModulesCanBeImportedFromProxy(t *testing.T) {
	t.Parallel()
	s, proxy := publishRelease(t)
	_, env := newUserEnv(t, s, proxy)
	dir := t.TempDir()
	var imports, requires strings.Builder
	for _, m := range publicModules(s.modules) {
		fmt.Fprintf(&requires, "require %s v0.1.0\n", m.path)
		if !strings.Contains(m.path, "/cmd/") {
			fmt.Fprintf(&imports, "import _ %q\n", m.path)
		}
	}
	for name, text := range map[string]string{
		"main.go": "package main\n\n" + imports.String() + "\nfunc main() {}\n", "go.mod": "module stranger\n\ngo 1.26.0\n\n" + requires.String(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packages := runProgram(t, env, "go", "-C", dir, "list", "-mod=mod", "-deps", ".")
	for _, m := range publicModules(s.modules) {
		if !strings.Contains(m.path, "/cmd/") && !slices.Contains(strings.Split(packages, "\n"), m.path) {
			t.Errorf("%s was not found", m.path)
		}
	}
}

// Here the go command reads the tags itself, as it does behind a real proxy.
func TestGoSumHasHashesOfTags(t *testing.T) {
	t.Parallel()
	s, proxy := publishRelease(t)
	_, env := newUserEnv(t, s, proxy)
	config := filepath.Join(t.TempDir(), "gitconfig")
	text := fmt.Sprintf("[url %q]\n\tinsteadOf = https://%s\n[safe]\n\tdirectory = *\n[protocol \"file\"]\n\tallow = always\n", "file://"+s.dir, project)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env = append(env, "GOPROXY=direct", "GIT_CONFIG_GLOBAL="+config)
	for _, path := range []string{project, project + "/etcd"} {
		var got struct{ Sum, GoModSum string }
		if err := json.Unmarshal([]byte(runProgram(t, env, "go", "mod", "download", "-json", path+"@v0.1.0")), &got); err != nil {
			t.Fatal(err)
		}
		sums := readFile(t, s.dir, "cmd/holdfast/go.sum")
		for _, want := range []string{path + " v0.1.0 " + got.Sum + "\n", path + " v0.1.0/go.mod " + got.GoModSum + "\n"} {
			if !strings.Contains(sums, want) {
				t.Errorf("the command's go.sum lacks %q", want)
			}
		}
	}
}

func TestRehearsalLeavesRepositoryUnchanged(t *testing.T) {
	t.Parallel()
	root := cloneRepository(t)
	before := inGit(t, root, "rev-parse", "HEAD")
	r := release{root: root, version: "v0.1.0", out: t.TempDir()}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	if inGit(t, root, "rev-parse", "HEAD") != before || inGit(t, root, "tag") != "" || inGit(t, root, "status", "--porcelain") != "" {
		t.Error("the repository was changed")
	}
	r.tag = true
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	tags := strings.Fields(inGit(t, root, "tag", "--points-at", "HEAD"))
	_, modules, err := readWorkspace(root)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range publicModules(modules) {
		want = append(want, m.tagFor("v0.1.0"))
	}
	slices.Sort(want)
	if !slices.Equal(tags, want) {
		t.Errorf("tags = %q, want %q", tags, want)
	}
	if text := readFile(t, root, "CHANGELOG.md"); !strings.Contains(text, "## [Unreleased]\n\n## [0.1.0] - 20") {
		t.Errorf("the changelog begins\n%.800s", text)
	}

	// The next release changes every requirement, and needs new text in the changelog.
	next := release{root: root, version: "v0.2.0", out: t.TempDir(), tag: true}
	if err := next.run(); err == nil || !strings.Contains(err.Error(), "[Unreleased] of CHANGELOG.md is empty") {
		t.Errorf("a release without a changelog entry: %v", err)
	}
	changes := strings.Replace(readFile(t, root, "CHANGELOG.md"), "## [Unreleased]\n", "## [Unreleased]\n\n- All: what is new in xyzzy.\n", 1)
	if err := os.WriteFile(filepath.Join(root, "CHANGELOG.md"), []byte(changes), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := next.run(); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("a release with uncommitted changes: %v", err)
	}
	commitAll(t, root)
	if err := next.run(); err != nil {
		t.Fatal(err)
	}
	work, modules, err := readWorkspace(root)
	if err != nil {
		t.Fatal(err)
	}
	if found := moduleFaults(work, modules); len(found) > 0 {
		t.Errorf("after the release: %q", found)
	}
	for _, file := range []string{"go.work", "cmd/holdfast/go.mod", "cmd/holdfast/go.sum"} {
		if text := readFile(t, root, file); strings.Contains(text, "holdfast v0.1.0") || !strings.Contains(text, "holdfast v0.2.0") {
			t.Errorf("%s does not contain the new version:\n%s", file, text)
		}
	}

	// A version that has a tag is built from the tag, with the notes at that commit.
	again, err := cutRelease(root, filepath.Join(t.TempDir(), "source"), "v0.1.0")
	if err != nil || !again.tagged || strings.Contains(again.notes, "xyzzy") {
		t.Errorf("the same release again: %+v, %v", again, err)
	}
}

func TestReleaseIsRejectedBeforeBuild(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ version, out, want string }{
		{"0.1.0", t.TempDir(), "no version"},
		{"v1", t.TempDir(), "no version"},
		{"v0.1.0", full, "is not empty"},
	} {
		r := release{root: full, version: c.version, out: c.out}
		if err := r.run(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q into %s: %v, want %q", c.version, c.out, err, c.want)
		}
	}
}

// TestDownloadsAreComplete builds a release twice and installs it.
func TestDownloadsAreComplete(t *testing.T) {
	t.Parallel()
	root := cloneRepository(t)
	systems := "linux/amd64"
	if *buildAll {
		systems = "all"
	}
	program := filepath.Join(t.TempDir(), "release") // without the race detector, which makes compression slow
	if _, err := outputOf(exec.Command("go", "build", "-buildvcs=false", "-o", program, ".")); err != nil {
		t.Fatal(err)
	}
	release := func(env ...string) (out string) {
		out = t.TempDir()
		runProgram(t, env, program, "-C", root, "-version", "v0.1.0", "-out", out, "-target", systems)
		return out
	}
	out := release()

	t.Run("TwoBuildsAreTheSame", func(t *testing.T) {
		var env []string
		if *buildAll {
			env = []string{"GOCACHE=" + t.TempDir()}
		}
		if a, b := describeTree(t, out), describeTree(t, release(env...)); a != b {
			t.Errorf("one build has\n%s\nand the other one\n%s", a, b)
		}
	})
	t.Run("Version", func(t *testing.T) {
		got := runProgram(t, nil, filepath.Join(out, "holdfast_linux_amd64_v1/holdfast"), "--version")
		if !strings.HasPrefix(got, "holdfast v0.1.0 commit ") {
			t.Errorf("the program prints %q", got)
		}
	})
	t.Run("Checksums", func(t *testing.T) {
		runProgram(t, nil, "sh", "-c", "cd "+out+" && sha256sum --check --strict SHA256SUMS")
	})
	t.Run("Archive", func(t *testing.T) {
		begin, dir := time.Now(), t.TempDir()
		names := runProgram(t, nil, "tar", "xzvf", filepath.Join(out, "holdfast_0.1.0_linux_amd64.tar.gz"), "-C", dir)
		firstRun(t, begin, filepath.Join(dir, "holdfast_0.1.0_linux_amd64"))
		for _, want := range []string{"holdfast", "LICENSE", "THIRD_PARTY", "man/holdfast-run.1", "completions/_holdfast"} {
			if !slices.Contains(strings.Fields(names), "holdfast_0.1.0_linux_amd64/"+want) {
				t.Errorf("the archive lacks %s:\n%s", want, names)
			}
		}
	})
	t.Run("PartsList", func(t *testing.T) { checkPartsList(t, out) })
	t.Run("Debian", func(t *testing.T) {
		deb := filepath.Join(out, "holdfast_0.1.0-1_amd64.deb")
		begin, dir := time.Now(), t.TempDir()
		if os.Getuid() == 0 {
			runProgram(t, nil, "sh", "-c", "mkdir -p "+dir+"/var/lib/dpkg/info "+dir+"/var/lib/dpkg/updates && touch "+dir+"/var/lib/dpkg/status")
			runProgram(t, nil, "dpkg", "--root="+dir, "-i", deb)
			if changed := runProgram(t, nil, "dpkg", "--root="+dir, "-V", "holdfast"); changed != "" {
				t.Errorf("the files differ from the package's:\n%s", changed)
			}
		} else {
			runProgram(t, nil, "dpkg-deb", "-x", deb, dir)
		}
		firstRun(t, begin, filepath.Join(dir, "usr/bin"))
		if got := runProgram(t, nil, "dpkg-deb", "-f", deb, "Version", "Architecture"); got != "Version: 0.1.0-1\nArchitecture: amd64" {
			t.Errorf("the package contains %q", got)
		}
		checkInstalled(t, dir)
	})
	t.Run("RPM", func(t *testing.T) {
		rpm := filepath.Join(out, "holdfast-0.1.0-1.x86_64.rpm")
		runProgram(t, nil, "rpm", "-K", rpm)
		if got := runProgram(t, nil, "rpm", "-qp", "--qf", "%{NAME} %{VERSION} %{ARCH} %{LICENSE}", rpm); got != "holdfast 0.1.0 x86_64 Apache-2.0" {
			t.Errorf("the package contains %q", got)
		}
		files := runProgram(t, nil, "rpm", "-qplv", rpm)
		for _, want := range []string{" /usr/bin/holdfast", " /usr/share/man/man1/holdfast-run.1.gz", " /usr/share/zsh/site-functions/_holdfast"} {
			if !strings.Contains(files+"\n", want+"\n") {
				t.Errorf("the package lacks%s:\n%s", want, files)
			}
		}
		if os.Getuid() == 0 {
			begin, dir := time.Now(), t.TempDir()
			runProgram(t, nil, "rpm", "--root", dir, "-i", "--nodeps", rpm)
			firstRun(t, begin, filepath.Join(dir, "usr/bin"))
			checkInstalled(t, dir)
		}
	})
	t.Run("Container", func(t *testing.T) { checkContainer(t, out) })
	t.Run("Image", func(t *testing.T) {
		if !*buildAll {
			t.Skip("needs buildah; with -all")
		}
		checkImage(t, out)
	})
	t.Run("Homebrew", func(t *testing.T) {
		rb := readFile(t, out, "holdfast.rb")
		sums := strings.Fields(readFile(t, out, "SHA256SUMS"))
		at := slices.Index(sums, "holdfast_0.1.0_linux_amd64.tar.gz")
		want := "holdfast_0.1.0_linux_amd64.tar.gz\"\n      sha256 \"" + sums[at-1] + "\"\n"
		if !strings.Contains(rb, want) || strings.Contains(rb, "{{") {
			t.Errorf("the formula lacks %q:\n%s", want, rb)
		}
	})
}

// describeTree returns the names, modes and hashes of all files in dir.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	return runProgram(t, nil, "sh", "-c", "cd "+dir+" && find . -type f -printf '%M %p\n' | sort && find . -type f -exec sha256sum {} + | sort -k2")
}

// checkInstalled checks the files that a package has installed below dir.
func checkInstalled(t *testing.T, dir string) {
	t.Helper()
	if got := runProgram(t, nil, filepath.Join(dir, "usr/bin/holdfast"), "--version"); !strings.HasPrefix(got, "holdfast v0.1.0 commit ") {
		t.Errorf("the installed program prints %q", got)
	}
	for page, want := range map[string]string{"holdfast.1.gz": "SEE ALSO", "holdfast-run.1.gz": "--kill-after", "holdfast-exit-codes.1.gz": "124"} {
		shown := runProgram(t, nil, "sh", "-c", "zcat "+filepath.Join(dir, "usr/share/man/man1", page)+" | mandoc -T ascii -W error | col -b")
		if !strings.Contains(shown, want) {
			t.Errorf("%s is printed without %q:\n%s", page, want, shown)
		}
	}
	// bash-completion, which the completions need, may be missing here. This function replaces it: it splits
	// the line into words.
	complete := `_init_completion() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; prev=${words[cword-1]}; }
. "$1"; PATH=$2:$PATH; COMP_WORDS=(holdfast el); COMP_CWORD=1; COMP_LINE="holdfast el"; COMP_POINT=11; COMP_TYPE=9
__start_holdfast; echo "${COMPREPLY[@]}"`
	completions := filepath.Join(dir, "usr/share/bash-completion/completions/holdfast")
	got := runProgram(t, nil, "bash", "--norc", "-c", complete, "bash", completions, filepath.Join(dir, "usr/bin"))
	if strings.TrimSpace(got) != "elect" {
		t.Errorf("bash completes \"holdfast el\" to %q", got)
	}
}

func checkPartsList(t *testing.T, out string) {
	t.Helper()
	var list partsList
	if err := json.Unmarshal([]byte(readFile(t, out, "holdfast_0.1.0_linux_amd64.cdx.json")), &list); err != nil {
		t.Fatal(err)
	}
	parts := make(map[string]string)
	for _, p := range list.Components {
		parts[p.Name] = p.Version
	}
	linked := runProgram(t, nil, "go", "version", "-m", filepath.Join(out, "holdfast_linux_amd64_v1/holdfast"))
	for line := range strings.Lines(linked) {
		if f := strings.Fields(line); f[0] == "dep" && parts[f[1]] != f[2] {
			t.Errorf("the list has %s %q, the program %s", f[1], parts[f[1]], f[2])
		}
	}
	if list.Metadata.Component.Version != "v0.1.0" || parts[project] != "v0.1.0" || parts["std"] == "" {
		t.Errorf("the list has %+v and %q", list.Metadata, parts)
	}
}

// checkContainer follows the steps of the container's definition. Its base has no program that Holdfast needs,
// so an empty folder replaces it.
func checkContainer(t *testing.T, out string) {
	t.Helper()
	text := strings.NewReplacer("${TARGETOS}", "linux", "${TARGETARCH}", "amd64").Replace(readFile(t, out, "Containerfile"))
	dir := t.TempDir()
	var user, entry string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "COPY":
			to := filepath.Join(dir, f[3])
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			from, err := filepath.Glob(filepath.Join(out, f[2]))
			if err != nil || len(from) != 1 {
				t.Fatalf("%s matches %q, %v", f[2], from, err)
			}
			if err := os.WriteFile(to, []byte(readFile(t, from[0])), 0o755); err != nil {
				t.Fatal(err)
			}
		case "USER":
			user = f[1]
		case "ENTRYPOINT":
			var argv []string
			if err := json.Unmarshal([]byte(strings.Join(f[1:], " ")), &argv); err != nil {
				t.Fatal(err)
			}
			entry = argv[0]
		case "FROM", "ARG", "#":
		default:
			t.Errorf("the test does not handle %s", f[0])
		}
	}
	if id, _, _ := strings.Cut(user, ":"); id == "" || id == "0" || strings.Trim(id, "0123456789") != "" {
		t.Errorf("the user is %q: Kubernetes needs a number to verify that it is not root", user)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can change the root of a process")
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := runProgram(t, nil, "chroot", "--userspec="+user, dir, entry, "demo"); !strings.Contains(got, "lost") {
		t.Errorf("the demo in the container prints\n%s", got)
	}
}

// checkImage builds the image with its real base and runs it.
func checkImage(t *testing.T, out string) {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(policy, []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	buildah := func(command string, args ...string) string {
		t.Helper()
		args = append([]string{"--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs", command}, args...)
		return runProgram(t, nil, "buildah", args...) // on Debian: apt-get install buildah
	}
	buildah("build", "--signature-policy", policy, "--isolation", "chroot", "--from", "scratch", "--pull=never", "--timestamp", "0",
		"-t", "holdfast", "-f", filepath.Join(out, "Containerfile"), out)
	container := buildah("from", "--signature-policy", policy, "--pull=never", "holdfast")
	defer buildah("rm", container)
	if user := buildah("inspect", "--format", "{{.OCIv1.Config.User}}", container); user != "65532:65532" {
		t.Errorf("the user of the image is %q", user)
	}
	if got := buildah("run", "--isolation", "chroot", container, "--", "/usr/bin/holdfast", "demo"); !strings.Contains(got, "lost") {
		t.Errorf("the demo in the image prints\n%s", got)
	}
}
