package zookeeper_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// kinds maps the operation codes that tests distinguish to names.
var kinds = map[int32]string{2: "delete", 4: "read", 9: "sync", 11: "ping", 12: "children", 14: "multi", 15: "create", -11: "close"}

// juteProtocol is the protocol of one ZooKeeper connection. The first request is a greeting, or srvr, which asks for
// the member's state.
type juteProtocol struct {
	greeted, welcomed bool
	plain             atomic.Bool
}

// packet reads one packet, whose length is word.
func packet(r io.Reader, word []byte) ([]byte, error) {
	body := make([]byte, binary.BigEndian.Uint32(word))
	_, err := io.ReadFull(r, body)
	return append(word, body...), err
}

func (j *juteProtocol) Request(r io.Reader) (p fixture.Packet, err error) {
	word := make([]byte, 4, 512)
	if _, err := io.ReadFull(r, word); err != nil {
		return p, err
	}
	if string(word) == "srvr" {
		j.plain.Store(true)
		return fixture.Packet{Bytes: word, Kind: "srvr", Number: -1, Safe: true}, nil
	}
	if p.Bytes, err = packet(r, word); err != nil {
		return p, err
	}
	if !j.greeted {
		j.greeted = true
		p.Kind, p.Number, p.Safe = "greeting", -1, true
		return p, nil
	}
	kind := int32(binary.BigEndian.Uint32(p.Bytes[8:]))
	p.Number = int(int32(binary.BigEndian.Uint32(p.Bytes[4:])))
	if p.Kind = kinds[kind]; p.Kind == "" {
		p.Kind = fmt.Sprint(kind)
	}
	p.Safe = p.Kind == "ping" || p.Kind == "close"
	return p, nil
}

func (j *juteProtocol) Reply(r io.Reader) (p fixture.Packet, err error) {
	word := make([]byte, 4, 512)
	if _, err := io.ReadFull(r, word); err != nil {
		return p, err
	}
	p.Last, p.Number = true, -1
	if j.plain.Load() {
		rest, err := io.ReadAll(r)
		p.Bytes = append(word, rest...)
		return p, err
	}
	p.Bytes, err = packet(r, word)
	if err == nil && j.welcomed {
		p.Number = int(int32(binary.BigEndian.Uint32(p.Bytes[4:])))
	}
	j.welcomed = true
	return p, err
}
