package member

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// marker is what a node remembers of its admission, apart from what its clients
// agree on.
type marker struct {
	run string // of the server, in which the node was admitted last; "": in none
	// durable is set if the node wrote to disk before it answered in that run, and can
	// read that back. It is the name that the client has for the node: replication and
	// copied files bring a marker to other nodes, where the name does not fit.
	durable string
	shard   string // of a cluster: the id of the node that was admitted or seen; slots that move bring markers of others
	floor   int64  // the first token that it may give

	seen   string // a later run, in which it was first seen, but not admitted yet
	first  clocks // when that was
	second clocks // when a quarantine was over since, by these clocks
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

// parse reads what String has written. ok is false for a text of another
// database, or of another version of the protocol.
func parse(text string) (m marker, ok bool) {
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

// label is a name as a marker has it, without spaces.
func label(name string) string { return url.PathEscape(name) }

// Floor is the first token that a server may give over a connection, by its marker; 0: any. A server that names no run may have been
// restarted before any connection, and may have come back with older counters: its tokens begin at the clock each time.
func Floor(marker, run string, node, client int64) (int64, error) {
	_, text, _ := strings.Cut(marker, " floor=")
	text, _, _ = strings.Cut(text, " ")
	floor, _ := strconv.ParseInt(text, 10, 64)
	if floor < 0 || floor > quorum.Base(quorum.MaxToken) {
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
