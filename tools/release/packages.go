package main

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/rpmpack"
)

const (
	homepage   = "https://" + project
	summary    = "run commands under a lock that several machines share"
	maintainer = "The Holdfast authors <holdfast@users.noreply.github.com>"
	about      = `Holdfast gives one process at a time a lease on a name, kept in Redis,
Valkey, PostgreSQL, etcd or ZooKeeper. holdfast run holds the lock while a command runs,
and stops the command before another machine can get the lock.`
)

// installedFiles returns the files that a package of Linux puts on a machine, sorted, with whole paths.
func (p *product) installedFiles(zshFolder, licenseFile string) []file {
	const share = "/usr/share/"
	all := []file{{"/usr/bin/holdfast", 0o755, p.program}, {licenseFile, 0o644, p.license}, {noticesBeside(licenseFile), 0o644, p.notices}}
	for _, f := range p.manual {
		all = append(all, file{share + "man/man1/" + f.name + ".gz", 0o644, gzipText(f.text)})
	}
	for _, f := range p.shells {
		switch f.name {
		case shells["bash"]:
			all = append(all, file{share + "bash-completion/completions/holdfast", f.mode, f.text})
		case shells["zsh"]:
			all = append(all, file{zshFolder + f.name, f.mode, f.text})
		case shells["fish"]:
			all = append(all, file{share + "fish/vendor_completions.d/" + f.name, f.mode, f.text})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return all
}

// noticesBeside returns where the notices of others go: beside the license.
func noticesBeside(licenseFile string) string { return path.Join(path.Dir(licenseFile), noticesName) }

// packageVersion orders a version before its release as packagers do: 1.0.0~rc.1 comes before 1.0.0.
func (p *product) packageVersion() string {
	return strings.Replace(strings.TrimPrefix(p.version, "v"), "-", "~", 1)
}

// writeDeb writes a package for Debian: an ar archive of two tar archives. See deb(5).
func (p *product) writeDeb(out string) error {
	version := p.packageVersion() + "-1"
	files := p.installedFiles("/usr/share/zsh/vendor-completions/", "/usr/share/doc/holdfast/copyright")
	changes := fmt.Sprintf("holdfast (%s) unstable; urgency=medium\n\n  * See %s/releases/tag/%s\n\n -- %s  %s\n",
		version, homepage, p.version, maintainer, p.date.Format(time.RFC1123Z))
	files = append(files, file{"/usr/share/doc/holdfast/changelog.Debian.gz", 0o644, gzipText([]byte(changes))})
	size, sums := 0, ""
	for i, f := range files {
		size += (len(f.text) + 1023) / 1024
		sums += fmt.Sprintf("%x  %s\n", md5.Sum(f.text), f.name[1:])
		files[i].name = "." + f.name
	}
	control := fmt.Sprintf("Package: holdfast\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n", version, p.arch, maintainer, size) +
		fmt.Sprintf("Section: admin\nPriority: optional\nHomepage: %s\nDescription: %s\n %s\n", homepage, summary, strings.ReplaceAll(about, "\n", "\n "))
	var head, data bytes.Buffer
	err1 := writeTarball(&head, []file{{"./control", 0o644, []byte(control)}, {"./md5sums", 0o644, []byte(sums)}}, p.date)
	err2 := writeTarball(&data, withFolders(files), p.date)
	members := []file{{"debian-binary", 0o644, []byte("2.0\n")}, {"control.tar.gz", 0o644, head.Bytes()}, {"data.tar.gz", 0o644, data.Bytes()}}
	name := fmt.Sprintf("holdfast_%s_%s.deb", version, p.arch)
	return errors.Join(err1, err2, createArchive(filepath.Join(out, name), writeAr, members, p.date))
}

// withFolders puts before each file the folders that it is in.
func withFolders(files []file) (all []file) {
	var seen []string
	for _, f := range files {
		var folders []file
		for dir := path.Dir(f.name); dir != "." && !slices.Contains(seen, dir); dir = path.Dir(dir) {
			seen = append(seen, dir)
			folders = append(folders, file{"./" + dir + "/", fs.ModeDir | 0o755, nil})
		}
		slices.Reverse(folders)
		all = append(append(all, folders...), f)
	}
	return all
}

// writeAr writes an archive in the format of ar(1).
func writeAr(w io.Writer, files []file, date time.Time) error {
	_, err := io.WriteString(w, "!<arch>\n")
	for _, f := range files {
		_, err1 := fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", f.name, date.Unix(), 0, 0, "100644", len(f.text))
		_, err2 := w.Write(f.text)
		if len(f.text)%2 == 1 {
			_, err2 = io.WriteString(w, "\n")
		}
		err = errors.Join(err, err1, err2)
	}
	return err
}

// writeRPM writes a package for Fedora, SUSE and the like.
func (p *product) writeRPM(out string) error {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[p.arch]
	const release = "1"
	version := p.packageVersion()
	r, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
		Name: "holdfast", Version: version, Release: release, Arch: arch, OS: "linux", Summary: summary, Description: about, URL: homepage,
		Licence: "Apache-2.0", Packager: maintainer, BuildHost: "localhost", BuildTime: p.date, Compressor: "gzip:6",
	})
	if err != nil {
		return err
	}
	license := "/usr/share/licenses/holdfast/LICENSE"
	for _, f := range p.installedFiles("/usr/share/zsh/site-functions/", license) {
		kind := rpmpack.GenericFile
		if f.name == license || f.name == noticesBeside(license) {
			kind = rpmpack.LicenceFile
		}
		r.AddFile(rpmpack.RPMFile{Name: f.name, Body: f.text, Mode: uint(f.mode), Owner: "root", Group: "root", MTime: uint32(p.date.Unix()), Type: kind})
	}
	name := fmt.Sprintf("holdfast-%s-%s.%s.rpm", version, release, arch)
	file, err := os.Create(filepath.Join(out, name))
	if err != nil {
		return err
	}
	return errors.Join(r.Write(file), file.Close())
}
