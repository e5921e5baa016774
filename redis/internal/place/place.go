// Package place is where a node is found: one server, the master that Sentinels name, the master among replicas, or a shard of a
// Redis Cluster. Nobody else asks of which kind it is.
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

// Place is where a node is. Identify and what it finds are for one goroutine; the rest may be called by many.
type Place interface {
	// Name is by which the node is known, whichever server it is.
	Name() string
	// Locate returns the address of the server that is the node now. It blocks until ctx ends at most.
	Locate(ctx context.Context) (string, error)
	// Login logs in to a server, and refuses one of another kind. It returns what the server says of itself.
	Login(ctx context.Context, addr string, l *resp.Conn) (hello map[string]string, err error)
	// Role refuses a server that is not the node by what it says, and names the defects of one that is.
	Role(hello, info map[string]string) (defects map[string]error, err error)
	// Identify learns from the server that is the node now what the place has of it.
	Identify(l *resp.Conn) error
	// Replaced says whether another server may become the node.
	Replaced() bool
	// Moved says whether the node is another server than the one at addr by now, as far as others know.
	Moved(ctx context.Context, addr string) bool
	// MarkerKey names the marker of the node.
	MarkerKey(f *format.Format, prefix string) string
	// Tag is what a key has in its name that shall be beside the marker.
	Tag() string
	// Beside is what a key has in its name that shall be on the same server as another key.
	Beside(key string) string
	// NoReplica returns why none of the replicas that may take over has confirmed anything, of a master that has none connected;
	// nil where there is none to take over.
	NoReplica(l *resp.Conn) error
	// Shard is the id of the shard that the node is, in a Redis Cluster; "": it is none. The marker of a shard is
	// in one of its hash slots, and so not beside its locks.
	Shard() string
	// Rights are what a user needs besides; "" where there are none.
	Rights() string
	// At adds to an error which server it is about, where Name does not say it.
	At(addr string, err error) error
}

// Net is how servers are reached.
type Net struct {
	server.Dialer
	Timeout     time.Duration                                                             // for finding the server
	Credentials func(ctx context.Context, addr string) (user, password string, err error) // for the login
}

// login logs in to a server, and refuses one that is a Sentinel, or in a Redis Cluster though cluster is not set, or the reverse.
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
		if err := strange(cluster, hello["mode"], "", nil); err != nil {
			return nil, err // it says more than the missing fields would
		}
	}
	return hello, err
}

// deniesCluster reports whether a server whose HELLO names a cluster has none by its INFO, as one that only speaks the protocol of
// Redis. It refuses one without scripts, which a user would otherwise try as part of a cluster.
func deniesCluster(l *resp.Conn) (bool, error) {
	values, err := l.Do([]string{"INFO", "cluster"}, []string{"SCRIPT", "EXISTS", "none"})
	if err != nil || server.ParseInfo(string(values[0].Text))["cluster_enabled"] != "0" {
		return false, err
	}
	if said := values[1]; said.IsError() && server.Unknown(string(said.Text)) {
		return false, server.Unfit("give Redis 6 or newer, or Valkey, itself", "it only speaks the protocol of Redis, and has no scripts: SCRIPT: %s", said.Text)
	}
	return true, nil
}

// errDemoted is why a server is not the node, though it may have been.
var errDemoted = errors.New("it is a replica: another server is about to be the master, or is it already")

// strange refuses a server that is no single master. info may say whose replica it
// is.
func strange(shard bool, mode, role string, info map[string]string) error {
	cluster := mode == "cluster" || info["cluster_enabled"] == "1"
	switch {
	case cluster && !shard:
		return server.Unfit("begin the URL with redis+cluster:// (rediss+cluster:// for TLS), or give independent servers",
			"it is part of a Redis Cluster")
	case shard && !cluster && mode != "":
		return server.Unfit("give its address as redis:// (rediss:// for TLS)", "it is not part of a Redis Cluster")
	case mode == "sentinel":
		return server.Unfit("give the address of a Redis server, or redis+sentinel://host:26379/NAME with the name of the master that it watches", "it is a Sentinel")
	case role == "replica" || role == "slave":
		of := ""
		if info["master_host"] != "" {
			of = " of " + info["master_host"] + ":" + info["master_port"]
		}
		return server.Unfit("give the address of a master that replicates nothing", "%w%s", server.ErrReplica, of)
	}
	return nil
}

// mode is what kind of server says hello and info; Valkey has a field of its own for it.
func mode(hello, info map[string]string) string {
	return cmp.Or(info["redis_mode"], info["server_mode"], hello["mode"])
}

func role(hello, info map[string]string) string { return cmp.Or(info["role"], hello["role"]) }

// replaceable refuses a server that is no master of a node that fails over. It says whether it may be cut off from all replicas.
func replaceable(shard bool, hello, info map[string]string) (defects map[string]error, err error) {
	switch err := strange(shard, mode(hello, info), role(hello, info), info); {
	case errors.Is(err, server.ErrReplica):
		return nil, errDemoted
	case err != nil:
		return nil, err
	case info["min_slaves_good_slaves"] == "":
		return map[string]error{"min-replicas": errIsolable}, nil
	}
	return nil, nil
}

// errIsolable is a defect of a master that goes on without its replicas: INFO does not
// count those that keep up.
var errIsolable = server.Advise(errors.New("min-replicas-to-write is 0: where it is cut off, it goes on granting locks beside the server that replaces it"),
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

// Role implements Place. It warns of a server that has replicas, or was one.
func (p *Fixed) Role(hello, info map[string]string) (map[string]error, error) {
	if err := strange(false, mode(hello, info), role(hello, info), info); err != nil {
		return nil, err
	}
	defects := make(map[string]error)
	if n := info["connected_slaves"]; n != "" && n != "0" {
		defects["replicas"] = server.Advise(fmt.Errorf("it has %s connected replicas: if one takes over, locks are lost", n), "nodes need none")
	}
	if server.Promotion(info) != "" {
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

// Beside implements Place.
func (p *Fixed) Beside(string) string { return "" }

// NoReplica implements Place.
func (p *Fixed) NoReplica(*resp.Conn) error { return errNoReplica }

var errNoReplica = errors.New("it has no replica connected")

// Shard implements Place.
func (p *Fixed) Shard() string { return "" }

// Rights implements Place.
func (p *Fixed) Rights() string { return "" }

// At implements Place.
func (p *Fixed) At(_ string, err error) error { return err }
