package member

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// marker is the admission part of a node's marker. The other part holds the settings on which its clients
// agree.
type marker struct {
	run string // run of the server in which the node was last admitted; "": none
	// durable is set if the node, in that run, wrote to disk before it answered and can read its data back.
	// The value is the client's name of the node: replication and copied files bring a marker to other nodes,
	// whose names differ.
	durable string
	shard   string // of a cluster: id of the node that was admitted or seen; moving slots bring markers of other shards
	floor   int64  // lowest token that the node may grant

	seen   string     // a later run, in which the node was first seen, but is not admitted yet
	first  wallClocks // time at which it was first seen
	second wallClocks // start of the second period, after a quarantine by these clocks
}

func (m marker) String() (text string) {
	if m.run != "" {
		text = " run=" + m.run
	}
	if m.durable != "" {
		text += " durable=" + m.durable
	}
	if m.shard != "" {
		text += " shard=" + m.shard
	}
	if m.floor != 0 {
		text += " floor=" + strconv.FormatInt(m.floor, 10)
	}
	if m.seen != "" {
		text += fmt.Sprintf(" seen=%s client=%d node=%d", m.seen, m.first.client, m.first.node)
		if m.second.client != 0 {
			text += fmt.Sprintf(" client2=%d node2=%d", m.second.client, m.second.node)
		}
	}
	return text
}

// parseMarker parses a text of String. ok is false for a text of another database, or of another version of
// the protocol.
func parseMarker(text string) (m marker, ok bool) {
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		number, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "run":
			m.run = value
		case "durable":
			m.durable = value
		case "shard":
			m.shard = value
		case "floor":
			m.floor = number
		case "seen":
			m.seen = value
		case "client":
			m.first.client = number
		case "node":
			m.first.node = number
		case "client2":
			m.second.client = number
		case "node2":
			m.second.node = number
		default:
			return m, false
		}
	}
	return m, true
}

// escapeName returns a name without spaces, for a marker.
func escapeName(name string) string { return url.PathEscape(name) }

// Floor returns the lowest token that a server may grant over a connection, according to its marker; 0: any. A
// server without a run id may have been restarted before any connection, and may have come back with older
// counters: its tokens start at the clock each time.
func Floor(marker, run string, node, client int64) (int64, error) {
	_, text, _ := strings.Cut(marker, " floor=")
	text, _, _ = strings.Cut(text, " ")
	floor, _ := strconv.ParseInt(text, 10, 64)
	if floor < 0 || floor > quorum.FirstOfBlock(quorum.MaxToken) {
		return 0, ErrFloor
	}
	if run != "" {
		return floor, nil
	}
	start, ok := quorum.Seed(node, client)
	if !ok {
		return 0, ErrClocks
	}
	return max(floor, start), nil
}
