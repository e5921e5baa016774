// Package goredis shows how a program with a go-redis client keeps locks and fenced data on the same servers.
// Copy its functions.
//
// The locks use their own connection to each server, which go-redis does not see. So pools, retries, hooks
// (AddHook, OnConnect, Limiter) and reads from replicas do not affect them.
package goredis

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/redis"
)

// Locks returns a lock client for the server of client. If the client has its own Dialer, set Dial: o.Dialer
// here instead of TLS; if it has a CredentialsProviderContext, set a Credentials that calls it.
func Locks(ctx context.Context, client *goredis.Client) (*holdfast.Client, error) {
	o := client.Options()
	drv, err := redis.New(ctx, []redis.Node{{Addr: o.Addr}}, &redis.Options{
		TLS: o.TLSConfig, Username: o.Username, Password: o.Password, DB: o.DB, ClientName: o.ClientName, Timeout: o.DialTimeout,
	})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// FailoverLocks returns a lock client for the master of a Sentinel group. It takes the options of
// goredis.NewFailoverClient, because such a client does not show them.
func FailoverLocks(ctx context.Context, o *goredis.FailoverOptions) (*holdfast.Client, error) {
	master := &redis.Failover{Sentinels: o.SentinelAddrs, Master: o.MasterName, Username: o.SentinelUsername, Password: o.SentinelPassword}
	drv, err := redis.New(ctx, []redis.Node{{Failover: master}}, &redis.Options{
		TLS: o.TLSConfig, Username: o.Username, Password: o.Password, DB: o.DB, ClientName: o.ClientName, Timeout: o.DialTimeout,
	})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// ClusterLocks returns a lock client for the Redis Cluster of client.
func ClusterLocks(ctx context.Context, client *goredis.ClusterClient) (*holdfast.Client, error) {
	o := client.Options()
	var some []redis.Node // the other nodes are found through these
	for _, addr := range o.Addrs {
		some = append(some, redis.Node{Addr: addr})
	}
	drv, err := redis.New(ctx, some, &redis.Options{
		Cluster: true, TLS: o.TLSConfig, Username: o.Username, Password: o.Password, ClientName: o.ClientName, Timeout: o.DialTimeout,
	})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// Store returns a storage that compares fencing tokens, on the data of client: a *goredis.Client, a
// *goredis.ClusterClient or a *goredis.Ring.
func Store(client goredis.Scripter) *redisfence.Store {
	return redisfence.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		reply, err := goredis.NewScript(script).Run(ctx, client, keys, args).Result()
		if errors.Is(err, goredis.Nil) {
			return nil, nil
		}
		return reply, err
	})
}
