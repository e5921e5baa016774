// Package report writes a report (the end of a run, or a lease) to a place that the caller names. A lease gives control
// of the lock, so only its owner can read the file.
//
//	no file yet, regular file      replaced in one step: a reader sees the old text or the new one
//	file that is a mount           overwritten, because it cannot be replaced: a reader may see a part
//	device, FIFO, open descriptor  written to, and not replaced
//	another user's device or FIFO  rejected: that user would read what controls the lock
//	link to a device or a FIFO     followed
//	link to stdout or stderr       written to like that descriptor, as /dev/stderr is such a link
//	any other link                 rejected: whoever made the link chooses the file that is replaced
//	folder, block device, socket   rejected
package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Place is the target of a report: a file or a stream. A nil Place accepts everything and keeps nothing.
type Place struct {
	flag   string   // flag that named the place, for errors
	public bool     // others may read it
	path   string   // path of a file, which may not exist yet; "" for a stream
	stream *os.File // stream or mounted file; open until Close, so that its number is not reused
}

// File returns the place for the file at path, which flag has named, or nil for "". It checks that the file
// can be written, and writes nothing.
func File(flag, path string) (*Place, error) {
	if path == "" {
		return nil, nil
	}
	p := &Place{flag: flag, path: path}
	info, err := os.Stat(path)
	if fd := standardDescriptor(path, info); fd != 0 {
		return FromDescriptor(flag, fd)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // for a dangling link see checkReplaceable
	case err != nil:
		return nil, p.writeError(err)
	case info.IsDir():
		return nil, p.writeError(fmt.Errorf("%s is a folder", path))
	case info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0:
		if p.stream, err = openStream(path); err != nil {
			return nil, p.writeError(err)
		}
		p.path = ""
		return p, nil
	}
	if err := p.checkReplaceable(); err != nil {
		return nil, p.writeError(err)
	}
	if isMounted(path) {
		if p.stream, err = openMount(path); err != nil {
			return nil, p.writeError(err)
		}
		return p, nil
	}
	f, err := p.createTempFile()
	if err != nil {
		return nil, p.writeError(fmt.Errorf("%w; name a file in a folder that exists and is yours", err))
	}
	return p, errors.Join(f.Close(), os.Remove(f.Name()))
}

// standardDescriptor returns the descriptor of this process, 1 or 2, to which a link at path leads, as
// /dev/stderr does, or 0. info describes the target.
func standardDescriptor(path string, info fs.FileInfo) int {
	if link, err := os.Lstat(path); err != nil || link.Mode()&fs.ModeSymlink == 0 || info == nil {
		return 0
	}
	for fd, f := range []*os.File{1: os.Stdout, 2: os.Stderr} {
		if f == nil {
			continue
		}
		if own, err := f.Stat(); err == nil && os.SameFile(own, info) {
			return fd
		}
	}
	return 0
}

// PublicFile is like File, for a report that others may read.
func PublicFile(flag, path string) (*Place, error) {
	p, err := File(flag, path)
	if p != nil {
		p.public = true
	}
	return p, err
}

func (p *Place) writeError(err error) error {
	return fmt.Errorf("%s cannot be written: %w", p.flag, err)
}

// checkReplaceable returns an error if the file at p.path cannot be replaced.
func (p *Place) checkReplaceable() error {
	info, err := os.Lstat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a link; name the file that it leads to", p.path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file that can be replaced", p.path)
	}
	return nil
}

// createTempFile creates a file in the folder of p.path, with mode 0600 less the umask.
func (p *Place) createTempFile() (*os.File, error) {
	draft, err := os.CreateTemp(filepath.Dir(p.path), "."+filepath.Base(p.path)+".*")
	return draft, p.replaceTempName(err)
}

// replaceTempName replaces the name of the temporary file in an error by p.path, which the user knows.
func (p *Place) replaceTempName(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: at.Op, Path: p.path, Err: at.Err}
	}
	if at, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: "replace", Path: p.path, Err: at.Err}
	}
	return err
}

// Kept reports whether a written text stays until the next one replaces it. A stream gets one text after
// another.
func (p *Place) Kept() bool { return p != nil && p.path != "" }

// Write writes text. It replaces an earlier text in one step.
func (p *Place) Write(text []byte) error {
	if p == nil {
		return nil
	}
	if err := p.writeFile(text); err != nil {
		return fmt.Errorf("%s: %w", p.flag, err)
	}
	return nil
}

// Read returns the text of the last Write to a file, by this process or an earlier one, or nil.
func (p *Place) Read() []byte {
	if !p.Kept() {
		return nil
	}
	text, _ := ReadFile(p.path) // ignore an error: nothing was written
	return text
}

// maxText bounds the text of ReadFile: a report or a lease is far shorter.
const maxText = 1 << 20

// ReadFile returns the text of the file at path. It does not wait for a writer: of a FIFO or a device it reads
// what arrives within a moment. It rejects a FIFO or device of another user, who could put it into a shared
// folder.
func ReadFile(path string) ([]byte, error) {
	f, err := openInput(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.SetReadDeadline(time.Now().Add(pace.WriteTime())) // a regular file has no deadlines, and never blocks
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxText:
		return nil, fmt.Errorf("%s is longer than %d bytes, which no report is", path, maxText)
	}
	return text, nil
}

func (p *Place) writeFile(text []byte) error {
	if p.stream != nil && p.path != "" {
		_, err := p.stream.WriteAt(text, 0)
		return errors.Join(err, p.stream.Truncate(int64(len(text))))
	}
	if p.stream != nil {
		p.stream.SetWriteDeadline(time.Now().Add(pace.WriteTime())) // a device has no deadlines, and may block like a terminal
		_, err := p.stream.Write(text)
		return err
	}
	if err := p.checkReplaceable(); err != nil {
		return err
	}
	draft, err := p.createTempFile()
	if err != nil {
		return err
	}
	return p.replaceFile(draft, text)
}

// replaceFile writes text into draft and renames draft to the file. After an error it removes the draft and
// the file is unchanged.
func (p *Place) replaceFile(draft *os.File, text []byte) error {
	_, err := draft.Write(text)
	if p.public {
		err = errors.Join(err, draft.Chmod(0o644))
	}
	if err = errors.Join(err, draft.Close()); err == nil {
		err = os.Rename(draft.Name(), p.path)
	}
	if err != nil {
		os.Remove(draft.Name())
	}
	return p.replaceTempName(err)
}

// Remove removes what was written to a file.
func (p *Place) Remove() error {
	if !p.Kept() {
		return nil
	}
	return Remove(p.path)
}

// Remove removes the regular file at path, empties a mounted file, and leaves a device alone.
func Remove(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil || !info.Mode().IsRegular():
		return err
	case isMounted(path):
		return os.Truncate(path, 0)
	}
	return os.Remove(path)
}

// Close closes the files that FromDescriptor and File have opened.
func (p *Place) Close() {
	if p != nil && p.stream != nil {
		p.stream.Close()
	}
}
