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

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/redlock"
)

// Locks returns a client of locks on the server of client. A client with a Dialer of its
// own has Dial: o.Dialer here in place of TLS, and one with a CredentialsProviderContext
// has a Credentials that calls it.
func Locks(ctx context.Context, client *redis.Client) (*holdfast.Client, error) {
	o := client.Options()
	drv, err := redlock.New(ctx, []redlock.Node{{Addr: o.Addr}}, &redlock.Options{
		TLS: o.TLSConfig, Username: o.Username, Password: o.Password, DB: o.DB, ClientName: o.ClientName, Timeout: o.DialTimeout,
	})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// FailoverLocks returns a client of locks on the master that Sentinels look after. It takes
// what redis.NewFailoverClient took, as such a client does not show it.
func FailoverLocks(ctx context.Context, o *redis.FailoverOptions) (*holdfast.Client, error) {
	master := &redlock.Failover{Sentinels: o.SentinelAddrs, Master: o.MasterName, Username: o.SentinelUsername, Password: o.SentinelPassword}
	drv, err := redlock.New(ctx, []redlock.Node{{Failover: master}}, &redlock.Options{
		TLS: o.TLSConfig, Username: o.Username, Password: o.Password, DB: o.DB, ClientName: o.ClientName, Timeout: o.DialTimeout,
	})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// ClusterLocks returns a client of locks on the Redis Cluster of client.
func ClusterLocks(ctx context.Context, client *redis.ClusterClient) (*holdfast.Client, error) {
	o := client.Options()
	var some []redlock.Node // by which the others are found
	for _, addr := range o.Addrs {
		some = append(some, redlock.Node{Addr: addr})
	}
	drv, err := redlock.New(ctx, some, &redlock.Options{
		Cluster: true, TLS: o.TLSConfig, Username: o.Username, Password: o.Password, ClientName: o.ClientName, Timeout: o.DialTimeout,
	})
	if err != nil {
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// Store returns a storage that checks fencing tokens, on the data of client: a
// *redis.Client, a *redis.ClusterClient or a *redis.Ring.
func Store(client redis.Scripter) *redisfence.Store {
	return redisfence.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		reply, err := redis.NewScript(script).Run(ctx, client, keys, args).Result()
		if errors.Is(err, redis.Nil) {
			return nil, nil
		}
		return reply, err
	})
}
