// Package report writes a report, how a run ended or a lease, to a place that the
// caller names. A lease gives control of the lock, so only its owner can read a
// file.
//
//	no file yet, regular file      replaced in one step: a reader sees the old text or the new one
//	file that is a mount           overwritten, as it cannot be replaced: a reader may see a part
//	device, FIFO, open descriptor  written to, and left what it is
//	another user's device or FIFO  refused: that user would read what controls the lock
//	link to a device or a FIFO     followed
//	link to stdout or stderr       written to as that descriptor is, as /dev/stderr is one
//	any other link                 refused: to replace what it leads to is to trust who made it
//	folder, block device, socket   refused
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

// Place is the target of a report: a file or a stream. The nil Place takes everything and keeps
// nothing.
type Place struct {
	flag   string   // that named the place, for errors
	public bool     // others may read it
	path   string   // of a regular file, or of none yet; "" for a stream
	stream *os.File // else, or of a mount; open until Close, so that no descriptor of that number is another one's
}

// File is the file at path, as flag says, or nil for "". File checks whether the
// file can be written, and writes nothing.
func File(flag, path string) (*Place, error) {
	if path == "" {
		return nil, nil
	}
	p := &Place{flag: flag, path: path}
	info, err := os.Stat(path)
	if fd := standardDescriptor(path, info); fd != 0 {
		return Descriptor(flag, fd)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // of a link to nothing, see regular
	case err != nil:
		return nil, p.cannotWrite(err)
	case info.IsDir():
		return nil, p.cannotWrite(fmt.Errorf("%s is a folder", path))
	case info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0:
		if p.stream, err = openStream(path); err != nil {
			return nil, p.cannotWrite(err)
		}
		p.path = ""
		return p, nil
	}
	if err := p.checkReplaceable(); err != nil {
		return nil, p.cannotWrite(err)
	}
	if isMounted(path) {
		if p.stream, err = openMount(path); err != nil {
			return nil, p.cannotWrite(err)
		}
		return p, nil
	}
	f, err := p.createDraft()
	if err != nil {
		return nil, p.cannotWrite(fmt.Errorf("%w; name a file in a folder that exists and is yours", err))
	}
	return p, errors.Join(f.Close(), os.Remove(f.Name()))
}

// standardDescriptor is the descriptor of this process, 1 or 2, that a link at path leads to, as
// /dev/stderr does, or 0. info is what it leads to.
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

// Public is File for what others may read.
func Public(flag, path string) (*Place, error) {
	p, err := File(flag, path)
	if p != nil {
		p.public = true
	}
	return p, err
}

func (p *Place) cannotWrite(err error) error {
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

// createDraft is a new file in the folder of p.path, of mode 0600 less what the umask
// takes.
func (p *Place) createDraft() (*os.File, error) {
	return os.CreateTemp(filepath.Dir(p.path), "."+filepath.Base(p.path)+".*")
}

// Kept reports whether a written text stays until the next one replaces it. A stream gets one text
// after the other.
func (p *Place) Kept() bool { return p != nil && p.path != "" }

// Write writes text, in one step where it replaces another.
func (p *Place) Write(text []byte) error {
	if p == nil {
		return nil
	}
	if err := p.writeFile(text); err != nil {
		return fmt.Errorf("%s: %w", p.flag, err)
	}
	return nil
}

// Read returns what Write has left in a file, by this process or an earlier one, or nil.
func (p *Place) Read() []byte {
	if !p.Kept() {
		return nil
	}
	text, _ := ReadFile(p.path) // none: nothing has been written
	return text
}

// maxText bounds what ReadFile takes of a file: a report or a lease is far shorter.
const maxText = 1 << 20

// ReadFile returns the text of the file at path. It waits for no writer: of a FIFO or a device it reads what
// comes within a moment. It rejects the FIFO or device of another user, who could put it at a path in a shared folder.
func ReadFile(path string) ([]byte, error) {
	f, err := openInput(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.SetReadDeadline(time.Now().Add(pace.WriteTime())) // a regular file takes none, and never blocks
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
		p.stream.SetWriteDeadline(time.Now().Add(pace.WriteTime())) // a device takes none, and blocks as the terminal does
		_, err := p.stream.Write(text)
		return err
	}
	if err := p.checkReplaceable(); err != nil {
		return err
	}
	draft, err := p.createDraft()
	if err != nil {
		return err
	}
	return p.replaceFile(draft, text)
}

// replaceFile puts text into draft, and draft in the place of the file. After an error the
// draft is removed and the file is what it was.
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
	return err
}

// Remove takes back what was written to a file.
func (p *Place) Remove() error {
	if !p.Kept() {
		return nil
	}
	return Remove(p.path)
}

// Remove removes the file at path if it is one, and empties a mount: a report may have
// gone to a device.
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

// Close gives up what Descriptor and File have opened.
func (p *Place) Close() {
	if p != nil && p.stream != nil {
		p.stream.Close()
	}
}
