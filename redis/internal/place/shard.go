package place

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// The marker of a shard is in one of its hash slots. The scripts of locks run in other slots and cannot
// compare it, so each client checks once a second that the master is still the one that it has checked
// (package redis, recheck). That is often enough, because a replica that has taken over grants nothing for
// MaxTTL + 2 s. A slot that moves takes a marker with it, which tells nothing about the shard that gets the
// slot.

// Shard is a master of a Redis Cluster, identified by its address. Another server that takes over is another
// Shard.
type Shard struct {
	Fixed
	id    string // id in the cluster
	slots int    // number of its hash slots in the last reply to CLUSTER SLOTS
	top   int    // the highest of them
}

// Login implements Place.
func (p *Shard) Login(ctx context.Context, addr string, l *resp.Conn) (map[string]string, error) {
	return p.login(ctx, addr, l, true)
}

// Role implements Place.
func (p *Shard) Role(hello, info map[string]string) (map[string]error, error) {
	defects, err := checkFailoverMaster(true, hello, info)
	if info["connected_slaves"] == "0" { // no replica can take over
		defects = nil
	}
	return defects, err
}

// ErrNotMaster is returned for a server of a cluster that is not a node, because it has no slots.
var ErrNotMaster = errors.New("it is not a master with hash slots, or no longer")

// Identify implements Place. The server itself reports its id in the cluster and its slots.
func (p *Shard) Identify(l *resp.Conn) error {
	values, err := server.Ask(l, []string{"CLUSTER", "MYID"}, []string{"CLUSTER", "SLOTS"})
	if err != nil {
		return err
	}
	spans, err := ParseSlots(values[1].Decode(), p.Addr)
	if err != nil {
		return err
	}
	p.id, p.slots, p.top = string(values[0].Text), 0, -1
	for _, s := range spans {
		if s.ID == p.id {
			p.slots += s.Last - s.First + 1
			p.top = max(p.top, s.Last) // tools that move slots begin with the lowest
		}
	}
	if p.top < 0 {
		return ErrNotMaster
	}
	return nil
}

// Replaced implements Place.
func (p *Shard) Replaced() bool { return true }

// MarkerKey implements Place.
func (p *Shard) MarkerKey(_ *format.Format, prefix string) string {
	return wire.ShardKey(prefix, p.top)
}

// Tag implements Place.
func (p *Shard) Tag() string { return "{" + wire.SlotTag(p.top) + "}" }

// SlotTag implements Place.
func (p *Shard) SlotTag(key string) string { return "{" + wire.SlotTag(wire.Slot(key)) + "}" }

// NoReplica implements Place. It asks the cluster for the replicas of the shard.
func (p *Shard) NoReplica(l *resp.Conn) error {
	values, err := server.Ask(l, []string{"CLUSTER", "MYID"}, []string{"CLUSTER", "SLOTS"})
	if err != nil {
		return err
	}
	ranges, _ := values[1].Decode().([]any)
	for _, r := range ranges {
		servers, _ := r.([]any)
		if len(servers) < 4 { // first slot, last slot, and the master
			continue
		}
		if master, _ := servers[2].([]any); len(master) > 2 && master[2] == values[0].Decode() {
			return errNoReplica
		}
	}
	return nil
}

// Shard implements Place.
func (p *Shard) Shard() string { return p.id }

// Slots returns the number of hash slots of the shard in the last reply to CLUSTER SLOTS.
func (p *Shard) Slots() int { return p.slots }

// Permissions implements Place.
func (p *Shard) Permissions() string {
	return " +cluster|myid +cluster|slots +cluster|info +asking +wait"
}

// MaxShards bounds the masters that a client connects to: as many as Redis recommends for a cluster.
const MaxShards = 1000

// Span is a range of hash slots with its master.
type Span struct {
	First, Last int
	ID, Addr    string // of the master
}

// ParseSlots parses the reply to CLUSTER SLOTS of the node with address from: for each range the first and the
// last slot, the master, and its replicas.
func ParseSlots(reply any, from string) (spans []Span, err error) {
	ranges, ok := reply.([]any)
	if !ok {
		return nil, resp.Unexpected(resp.ErrShape)
	}
	left := wire.Slots // slots that no range has had
	masters := make(map[string]bool)
	for _, r := range ranges {
		fields, _ := r.([]any)
		if len(fields) < 3 {
			return nil, resp.Unexpected(resp.ErrShape)
		}
		first, ok1 := fields[0].(int64)
		last, ok2 := fields[1].(int64)
		master, _ := fields[2].([]any)
		if !ok1 || !ok2 || len(master) < 2 || first < 0 || last < first || last >= wire.Slots {
			return nil, resp.Unexpected(resp.ErrShape)
		}
		host, _ := master[0].(string) // nil: the dialed one
		port, _ := master[1].(int64)
		if len(master) > 3 && host == "?" { // the node has no name yet
			host = findIP(master[3])
		}
		id := ""
		if len(master) > 2 {
			id, _ = master[2].(string)
		}
		addr, ok := ResolveAddr(host, strconv.FormatInt(port, 10), from)
		if !ok {
			return nil, resp.Unexpected(errors.New("it names no address"))
		}
		masters[addr] = true
		if left -= int(last-first) + 1; left < 0 || len(masters) > MaxShards {
			return nil, resp.Unexpected(fmt.Errorf("it names slots twice, or more than %d masters", MaxShards))
		}
		spans = append(spans, Span{int(first), int(last), id, addr})
	}
	return spans, nil
}

// findIP returns the IP address among the details of a node in a reply to CLUSTER SLOTS.
func findIP(v any) string {
	list, _ := v.([]any)
	for i := 0; i+1 < len(list); i += 2 {
		if list[i] == "ip" {
			ip, _ := list[i+1].(string)
			return ip
		}
	}
	return ""
}

// ResolveAddr returns the address of a node that another node names. from is the address of that other node, whose
// host replaces a missing one. ok is false for an address that no server can have: it is not dialed, so no
// error of a lookup shows it.
func ResolveAddr(host, port, from string) (addr string, ok bool) {
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(from)
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return net.JoinHostPort(host, port), driverkit.IsDialable(host, port)
}
