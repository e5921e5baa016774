// Package place finds the server of a node: a fixed server, the master that Sentinels name, the master among
// replicas, or a shard of a Redis Cluster. No other package distinguishes these kinds.
package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// Place finds the server of a node. Identify and the methods that return its results are for one goroutine;
// the others are safe for concurrent use.
type Place interface {
	// Name returns the name of the node, which does not depend on the present server.
	Name() string
	// Locate returns the address of the node's present server. It blocks at most until ctx ends.
	Locate(ctx context.Context) (string, error)
	// Login logs in to a server, and rejects a server of another kind. It returns the reply to HELLO.
	Login(ctx context.Context, addr string, l *resp.Conn) (hello map[string]string, err error)
	// Role returns an error if the server is not the node, according to its replies to HELLO and INFO, and
	// otherwise its defects.
	Role(hello, info map[string]string) (defects map[string]error, err error)
	// Identify asks the present server for its id and hash slots, if the place needs them.
	Identify(l *resp.Conn) error
	// Replaced reports whether another server may become the node.
	Replaced() bool
	// Moved reports whether other servers name another server than addr for the node.
	Moved(ctx context.Context, addr string) bool
	// MarkerKey returns the key of the node's marker.
	MarkerKey(f *format.Format, prefix string) string
	// Tag returns the hash tag that puts a key into the slot of the marker.
	Tag() string
	// SlotTag returns the hash tag that puts a key into the slot of another key.
	SlotTag(key string) string
	// NoReplica returns the error for a master without a connected replica, so that no replica can confirm a
	// write. It returns nil if no replica can take over.
	NoReplica(l *resp.Conn) error
	// Shard returns the id of the shard in a Redis Cluster; "": the node is no shard. The marker of a shard is
	// in one of its hash slots, usually not the slot of a lock.
	Shard() string
	// Permissions returns the additional permissions that a user needs; "" if none.
	Permissions() string
	// At adds the address of the server to an error, unless the error's node name contains it.
	At(addr string, err error) error
}

// Net connects to servers.
type Net struct {
	server.Dialer
	Timeout     time.Duration                                                             // for finding the server
	Credentials func(ctx context.Context, addr string) (user, password string, err error) // for the login
}

// login logs in to a server. It rejects a Sentinel. If cluster is set it accepts only a server of a Redis
// Cluster, and otherwise only other servers.
func (n *Net) login(ctx context.Context, addr string, l *resp.Conn, cluster bool) (hello map[string]string, err error) {
	user, pass, err := n.Credentials(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err) // their source may be down for a while
	}
	hello, err = n.Dialer.Login(l, user, pass)
	if hello["mode"] == "cluster" && !cluster {
		denies, err := deniesCluster(l)
		if err != nil {
			return nil, err
		}
		if denies {
			delete(hello, "mode")
		}
	}
	if hello != nil {
		if err := checkKind(cluster, hello["mode"], "", nil); err != nil {
			return nil, err // it tells more than an error about missing fields
		}
	}
	return hello, err
}

// deniesCluster reports whether a server that calls itself a cluster in HELLO denies that in INFO, as some
// servers do that imitate Redis. It rejects a server without scripts, which a user would otherwise try as part
// of a cluster.
func deniesCluster(l *resp.Conn) (bool, error) {
	values, err := l.Do([]string{"INFO", "cluster"}, []string{"SCRIPT", "EXISTS", "none"})
	if err != nil || server.ParseInfo(string(values[0].Text))["cluster_enabled"] != "0" {
		return false, err
	}
	if said := values[1]; said.IsError() && server.IsUnknownCommand(string(said.Text)) {
		return false, server.UnfitError("give Redis 6 or newer, or Valkey, itself", "it only speaks the protocol of Redis, and has no scripts: SCRIPT: %s", said.Text)
	}
	return true, nil
}

// errDemoted is returned for a server that is not the node any more, or never was.
var errDemoted = errors.New("it is a replica: another server is the master, or is about to be")

// checkKind rejects a server that is not a master of the expected kind. If the server is a replica, info may
// name its master.
func checkKind(shard bool, mode, role string, info map[string]string) error {
	cluster := mode == "cluster" || info["cluster_enabled"] == "1"
	switch {
	case cluster && !shard:
		return server.UnfitError("begin the URL with redis+cluster:// (rediss+cluster:// for TLS), or give independent servers",
			"it is part of a Redis Cluster")
	case shard && !cluster && mode != "":
		return server.UnfitError("give its address as redis:// (rediss:// for TLS)", "it is not part of a Redis Cluster")
	case mode == "sentinel":
		return server.UnfitError("give the address of a Redis server, or redis+sentinel://host:26379/NAME with the name of the master that it watches", "it is a Sentinel")
	case role == "replica" || role == "slave":
		of := ""
		if info["master_host"] != "" {
			of = " of " + info["master_host"] + ":" + info["master_port"]
		}
		return server.UnfitError("give the address of a master that replicates nothing", "%w%s", server.ErrReplica, of)
	}
	return nil
}

// serverMode returns the kind of server according to hello and info; Valkey has its own field for it.
func serverMode(hello, info map[string]string) string {
	return cmp.Or(info["redis_mode"], info["server_mode"], hello["mode"])
}

func serverRole(hello, info map[string]string) string { return cmp.Or(info["role"], hello["role"]) }

// checkFailoverMaster rejects a server that is not the master of a node that fails over. A defect reports that
// the master continues without all of its replicas.
func checkFailoverMaster(shard bool, hello, info map[string]string) (defects map[string]error, err error) {
	switch err := checkKind(shard, serverMode(hello, info), serverRole(hello, info), info); {
	case errors.Is(err, server.ErrReplica):
		return nil, errDemoted
	case err != nil:
		return nil, err
	case info["min_slaves_good_slaves"] == "":
		return map[string]error{"min-replicas": errNoMinReplicas}, nil
	}
	return nil, nil
}

// errNoMinReplicas is the defect of a master that continues without its replicas: INFO does not count the
// replicas that keep up.
var errNoMinReplicas = server.Advise(
	errors.New("min-replicas-to-write is 0: if the network isolates it, it keeps granting locks beside the server that replaces it"),
	"set min-replicas-to-write 1 and min-replicas-max-lag 3 on each server: "+
		"https://github.com/holdfast-go/holdfast/blob/main/docs/your-redis.md#sentinel-and-other-failovers")

// Fixed is one server that no other replaces.
type Fixed struct {
	*Net
	Addr string
}

// Name implements Place.
func (p *Fixed) Name() string { return p.Addr }

// Locate implements Place.
func (p *Fixed) Locate(context.Context) (string, error) { return p.Addr, nil }

// Login implements Place.
func (p *Fixed) Login(ctx context.Context, addr string, l *resp.Conn) (map[string]string, error) {
	return p.login(ctx, addr, l, false)
}

// Role implements Place. It returns a defect if the server has replicas, or was a replica.
func (p *Fixed) Role(hello, info map[string]string) (map[string]error, error) {
	if err := checkKind(false, serverMode(hello, info), serverRole(hello, info), info); err != nil {
		return nil, err
	}
	defects := make(map[string]error)
	if n := info["connected_slaves"]; n != "" && n != "0" {
		defects["replicas"] = server.Advise(fmt.Errorf("it has %s connected replicas: if one takes over, locks are lost", n), "nodes need none")
	}
	if server.PromotionID(info) != "" {
		defects["promoted"] = errors.New("it was a replica before, or a restart has read back a snapshot that it saved while it had replicas: " +
			"locks that were granted last may be lost")
	}
	return defects, nil
}

// Identify implements Place.
func (p *Fixed) Identify(*resp.Conn) error { return nil }

// Replaced implements Place.
func (p *Fixed) Replaced() bool { return false }

// Moved implements Place.
func (p *Fixed) Moved(context.Context, string) bool { return false }

// MarkerKey implements Place.
func (p *Fixed) MarkerKey(f *format.Format, prefix string) string { return f.SetKey(prefix) }

// Tag implements Place.
func (p *Fixed) Tag() string { return "" }

// SlotTag implements Place.
func (p *Fixed) SlotTag(string) string { return "" }

// NoReplica implements Place.
func (p *Fixed) NoReplica(*resp.Conn) error { return errNoReplica }

var errNoReplica = errors.New("it has no replica connected")

// Shard implements Place.
func (p *Fixed) Shard() string { return "" }

// Permissions implements Place.
func (p *Fixed) Permissions() string { return "" }

// At implements Place.
func (p *Fixed) At(_ string, err error) error { return err }
