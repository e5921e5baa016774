// Package rueidis shows how a program with a rueidis client keeps locks and fenced data on the same servers.
// Copy its functions.
//
// The locks use their own connection to each server, which rueidis does not see. So caching, pipelining,
// redirects and reads from replicas do not affect them.
package rueidis

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/redis"
)

// Locks returns a lock client for the servers of a rueidis client: one server, the master of a Sentinel group,
// or a Redis Cluster. It takes the options of rueidis.NewClient, because clients do not show them. rueidis
// treats several addresses as a cluster; for a single address of a cluster, set Cluster. If the client has its
// own DialCtxFn, set a Dial that calls it here instead of TLS; if it has an AuthCredentialsFn, set a
// Credentials that calls it.
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

// Store returns a storage that compares fencing tokens, on the data of client.
func Store(client rueidis.Client) *redisfence.Store {
	return redisfence.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		reply, err := rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny()
		if rueidis.IsRedisNil(err) {
			return nil, nil
		}
		return reply, err
	})
}
