package postgres_test

import (
	"encoding/binary"
	"io"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// messages is the protocol on one connection of PostgreSQL, on which a client of ours sends a
// request when the last one is answered.
type messages struct{ sent, answered int }

// message reads one; the first of a client has no kind.
func message(r io.Reader, kind bool) ([]byte, error) {
	head := make([]byte, 5)
	if !kind {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	msg := append(head, make([]byte, n)...)
	_, err := io.ReadFull(r, msg[len(head):])
	return msg, err
}

// Request reads messages up to the one that asks for an answer.
func (m *messages) Request(r io.Reader) (p fixture.Packet, err error) {
	p.Number, p.Kind = m.sent, "statement"
	for {
		msg, err := message(r, m.sent > 0)
		if err != nil {
			return p, err
		}
		p.Bytes = append(p.Bytes, msg...)
		if m.sent > 0 && msg[0] != 'S' && msg[0] != 'Q' && msg[0] != 'X' && msg[0] != 'p' {
			continue
		}
		p.Text = string(p.Bytes)
		p.Safe = m.sent == 0 || msg[0] == 'X' || msg[0] == 'p'
		if msg[0] != 'p' || m.sent == 0 { // a password has the answer of the greeting
			m.sent++
		}
		return p, nil
	}
}

func (m *messages) Reply(r io.Reader) (p fixture.Packet, err error) {
	p.Bytes, err = message(r, true)
	if err != nil {
		return p, err
	}
	p.Number = m.answered
	switch p.Bytes[0] {
	case 'Z':
		p.Last = true
		m.answered++
	case 'A':
		p.Kind = "notice"
	}
	return p, nil
}
