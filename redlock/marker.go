package redlock

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redlock/internal/format"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
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
	client int64  // when that was by that client's clock, in µs since 1970
	node   int64  // and by the node's

	client2, node2 int64 // the same, when a quarantine was over since by these clocks
}

// in says whether the node was admitted in this run.
func (m marker) in(run string) bool {
	return m.run == run || strings.HasPrefix(m.run, run+"/") // it has forgotten its promotion since: see promotion
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
		text += " floor=" + format.Decimal(m.floor)
	}
	if m.seen != "" {
		text += fmt.Sprintf(" seen=%s client=%d node=%d", m.seen, m.client, m.node)
		if m.client2 != 0 {
			text += fmt.Sprintf(" client2=%d node2=%d", m.client2, m.node2)
		}
	}
	return text
}

// parseMarker reads what String has written. ok is false for a text of another
// database, or of another version of the protocol.
func parseMarker(text string) (m marker, ok bool) {
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "run":
			m.run = value
		case "durable":
			m.durable = value
		case "shard":
			m.shard = value
		case "floor":
			m.floor, _ = strconv.ParseInt(value, 10, 64)
		case "seen":
			m.seen = value
		case "client":
			m.client, _ = strconv.ParseInt(value, 10, 64)
		case "node":
			m.node, _ = strconv.ParseInt(value, 10, 64)
		case "client2":
			m.client2, _ = strconv.ParseInt(value, 10, 64)
		case "node2":
			m.node2, _ = strconv.ParseInt(value, 10, 64)
		default:
			return m, false
		}
	}
	return m, true
}

// label is addr as a marker has it, without spaces.
func label(addr string) string { return url.PathEscape(addr) }

// swap replaces the marker, if it is still old, and says whether it was.
func (g *gate) swap(l *resp.Conn, key, old, next string) (done bool, err error) {
	values, err := server.Ask(l, []string{"SCRIPT", "LOAD", wire.Admit.Text}, []string{"EVALSHA", wire.Admit.SHA, "1", key, old, next})
	if err != nil {
		return false, fmt.Errorf("its marker %s cannot be written: %w", key, err)
	}
	number, _ := values[1].Int()
	return number == 1, nil
}

// durable says whether the server writes everything to disk before it answers, and reads it
// back when it starts.
func (g *gate) durable(l *resp.Conn) bool {
	if kept, err := server.OnDisk(l); err != nil || !kept {
		return false
	}
	read, err := server.Replays(l, g.opts.probeKeys("doctor"))
	return read && err == nil
}
