// Package goredis shows how a program that has a go-redis client keeps locks and fenced
// data on the same servers. Its functions are there to be copied.
//
// Locks have a connection of their own to each server, which go-redis does not see. So
// pools, retries, hooks (AddHook, OnConnect, Limiter) and reads from replicas mean
// nothing to them.
package goredis

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/redis"
)

// Locks returns a client of locks on the server of client. A client with a Dialer of its
// own has Dial: o.Dialer here in place of TLS, and one with a CredentialsProviderContext
// has a Credentials that calls it.
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

// FailoverLocks returns a client of locks on the master that Sentinels look after. It takes
// what goredis.NewFailoverClient took, as such a client does not show it.
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

// ClusterLocks returns a client of locks on the Redis Cluster of client.
func ClusterLocks(ctx context.Context, client *goredis.ClusterClient) (*holdfast.Client, error) {
	o := client.Options()
	var some []redis.Node // by which the others are found
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

// Store returns a storage that checks fencing tokens, on the data of client: a
// *goredis.Client, a *goredis.ClusterClient or a *goredis.Ring.
func Store(client goredis.Scripter) *redisfence.Store {
	return redisfence.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		reply, err := goredis.NewScript(script).Run(ctx, client, keys, args).Result()
		if errors.Is(err, goredis.Nil) {
			return nil, nil
		}
		return reply, err
	})
}
