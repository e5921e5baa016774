package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// settingsBytes bounds the settings that a server reports on a connection. A real server reports 15 or so,
	// and a new value replaces the old one.
	settingsBytes = 256 << 10
	// notificationBytes bounds a notification. Most servers are built for 8,000 bytes, and none for more than
	// 32,768.
	notificationBytes = 64 << 10
)

var (
	errSettings     = errors.New("the server reports settings without end; look what answers at this address")
	errNotification = errors.New("the server sends a notification that is too long for PostgreSQL; look what answers at this address")
)

// boundedReader ends a connection on which the server reports too many settings, all of which pgx would keep, or
// sends a long notification, of which pgx would make three copies. pgx has no bounds and no hooks for that.
type boundedReader struct {
	io.Reader
	head  []byte // of the current message: its kind and length
	rest  int    // bytes of the current message still to come
	text  []byte // setting that is arriving
	sizes map[string]int
	total int
}

// newFrontend returns pgx's reader and writer of messages over a boundedReader.
func newFrontend(r io.Reader, w io.Writer) *pgproto3.Frontend {
	return pgproto3.NewFrontend(&boundedReader{Reader: r, sizes: make(map[string]int)}, w)
}

func (s *boundedReader) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if beyond := s.scanMessages(p[:n]); beyond != nil {
		return 0, beyond
	}
	return n, err
}

// scanMessages checks the next bytes that the server has sent. It returns an error if a message exceeds its limit.
func (s *boundedReader) scanMessages(b []byte) error {
	const notification, setting, headBytes = 'A', 'S', 5
	for len(b) > 0 {
		if missing := headBytes - len(s.head); missing > 0 {
			n := min(missing, len(b))
			s.head, b = append(s.head, b[:n]...), b[n:]
			if n < missing {
				return nil
			}
			s.rest = int(binary.BigEndian.Uint32(s.head[1:])) - 4
		}
		kind, n := s.head[0], min(max(s.rest, 0), len(b))
		switch {
		case kind == setting && s.rest > settingsBytes:
			return errSettings
		case kind == notification && s.rest > notificationBytes:
			return errNotification
		case kind == setting:
			s.text = append(s.text, b[:n]...)
		}
		b = b[n:]
		if s.rest -= n; s.rest > 0 {
			return nil
		}
		if kind == setting && !s.countSetting() {
			return errSettings
		}
		s.head, s.text = s.head[:0], s.text[:0]
	}
	return nil
}

// countSetting counts the setting that has arrived. It returns false after too many.
func (s *boundedReader) countSetting() bool {
	name, _, _ := bytes.Cut(s.text, []byte{0})
	size := len(s.text) + rowBytes
	s.total += size - s.sizes[string(name)]
	s.sizes[string(name)] = size
	return s.total <= settingsBytes
}
