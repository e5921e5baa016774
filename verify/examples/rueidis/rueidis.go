// Package rueidis shows how a program that has a rueidis client keeps locks and fenced
// data on the same servers. Its functions are there to be copied.
//
// Locks have a connection of their own to each server, which rueidis does not see. So
// caching, pipelining, redirects and reads from replicas mean nothing to them.
package rueidis

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/redis"
)

// Locks returns a client of locks on the servers of a rueidis client: one server, the master
// that Sentinels look after, or a Redis Cluster. It takes what rueidis.NewClient took, as
// clients do not show it. To rueidis several addresses are a cluster; if a single address is
// of one, set Cluster. A client with a DialCtxFn of its own has a Dial that calls it here
// in place of TLS, and one with an AuthCredentialsFn has a Credentials that does.
func Locks(ctx context.Context, o rueidis.ClientOption) (*holdfast.Client, error) {
	opts := &redis.Options{
		TLS: o.TLSConfig, Username: o.Username, Password: o.Password, DB: o.SelectDB, ClientName: o.ClientName, Timeout: o.Dialer.Timeout,
	}
	var nodes []redis.Node
	if s := o.Sentinel; s.MasterSet != "" {
		nodes = []redis.Node{{Failover: &redis.Failover{Sentinels: o.InitAddress, Master: s.MasterSet, Username: s.Username, Password: s.Password}}}
	} else {
		opts.Cluster = len(o.InitAddress) > 1
		for _, addr := range o.InitAddress {
			nodes = append(nodes, redis.Node{Addr: addr})
		}
	}
	drv, err := redis.New(ctx, nodes, opts)
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// Store returns a storage that checks fencing tokens, on the data of client.
func Store(client rueidis.Client) *redisfence.Store {
	return redisfence.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		reply, err := rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny()
		if rueidis.IsRedisNil(err) {
			return nil, nil
		}
		return reply, err
	})
}
