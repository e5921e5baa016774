// Package fromgoredis takes the settings of connections for package redlock from the options of go-redis clients.
//
// # What is not carried over
//
// Connections are not shared: locks have one of their own to each server, which
// go-redis does not see. Hooks of a client (AddHook) are not called for it, and pools,
// retries, the timeouts of single commands and the protocol mean nothing to it.
// Options with a Limiter or with OnConnect are refused, and for a cluster those with
// ClusterSlots or NewClient.
package fromgoredis

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/internal/settings"
)

// Settings returns the arguments of redlock.New for the servers of some go-redis
// clients: one, or several independent ones. Failover is for one that Sentinels look after,
// Cluster for a Redis Cluster. It takes what was given to redis.NewClient,
// or what Options of a client returns, and does not block. The caller may change the
// options that it returns.
//
// It carries over the address and network, the dialer, TLS, user and password or what
// provides them, the number of the database, the name of the client, and DialTimeout as
// Timeout (5 s in what Options of a client returns, unless it was set). A Dialer secures
// its connections itself, as for go-redis. Credentials are asked for at each new
// connection, also where they come as a stream.
//
// Errors match driver.ErrInvalid: a Limiter, OnConnect, a client of Sentinels, and
// databases or names that differ.
func Settings(servers ...*redis.Options) ([]redlock.Node, *redlock.Options, error) {
	all := make([]settings.Server, len(servers))
	for i, o := range servers {
		addr := cmp.Or(o.Addr, "localhost:6379")
		switch {
		case addr == "FailoverClient":
			return nil, nil, settings.Refuse(addr, "Sentinels",
				"their addresses are not in the options of the client: give fromgoredis.Failover its redis.FailoverOptions")
		case o.Limiter != nil:
			return nil, nil, settings.Refuse(addr, "Limiter", without)
		case o.OnConnect != nil:
			return nil, nil, settings.Refuse(addr, "OnConnect", without)
		}
		all[i] = server(o, addr)
	}
	return settings.Join(all)
}

const without = "set it to nil in a copy of the options if locks may do without it"

// Failover returns the arguments of redlock.New for a master and its replicas that Sentinels
// look after: one node, which follows the master. It takes what was given to
// redis.NewFailoverClient (of redis.UniversalOptions: what their Failover returns), does not
// block, and carries over what Settings does, and MasterName, SentinelAddrs, SentinelUsername
// and SentinelPassword. Only the Sentinels in SentinelAddrs are asked. That reads may go to
// replicas means nothing to locks.
//
// Errors match driver.ErrInvalid: OnConnect, and ReplicaOnly. For a set of several such
// masters, make a redlock.Node with a Failover for each.
func Failover(o *redis.FailoverOptions) ([]redlock.Node, *redlock.Options, error) {
	switch {
	case o.OnConnect != nil:
		return nil, nil, settings.Refuse(o.MasterName, "OnConnect", without)
	case o.ReplicaOnly:
		return nil, nil, settings.Refuse(o.MasterName, "ReplicaOnly", "set it to false in a copy of the options: locks are written to the master")
	}
	user, pass := login(o.SentinelUsername, o.SentinelPassword)
	return settings.Failover(server(&redis.Options{
		Dialer: o.Dialer, TLSConfig: o.TLSConfig, DialTimeout: o.DialTimeout, DB: o.DB, ClientName: o.ClientName, Username: o.Username, Password: o.Password,
		CredentialsProvider: o.CredentialsProvider, CredentialsProviderContext: o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,
	}, ""), &redlock.Failover{Sentinels: o.SentinelAddrs, Master: o.MasterName, Username: user, Password: pass})
}

// Cluster returns the arguments of redlock.New for a Redis Cluster. It takes what was given to
// redis.NewClusterClient (of redis.UniversalOptions: what their Cluster returns), or what Options
// of such a client returns, does not block, and carries over what Settings does, but for the
// number of the database, and Addrs. That reads may go to replicas means nothing to locks.
//
// Errors match driver.ErrInvalid: OnConnect, NewClient, and ClusterSlots, which makes a cluster of
// servers that are none.
func Cluster(o *redis.ClusterOptions) ([]redlock.Node, *redlock.Options, error) {
	addrs := strings.Join(o.Addrs, ",")
	switch {
	case o.OnConnect != nil:
		return nil, nil, settings.Refuse(addrs, "OnConnect", without)
	case o.ClusterSlots != nil:
		return nil, nil, settings.Refuse(addrs, "ClusterSlots", "give the redis.Options of each server to Settings, and the drivers to package sharding; "+
			"for a client that NewFailoverClusterClient made, give its redis.FailoverOptions to Failover")
	case o.NewClient != nil && reflect.ValueOf(o.NewClient).Pointer() != reflect.ValueOf(redis.NewClient).Pointer(): // which Options of a client has
		return nil, nil, settings.Refuse(addrs, "NewClient", "set it to nil in a copy of the options, and there or in the result what it changes")
	}
	return settings.Cluster(server(&redis.Options{
		Dialer: o.Dialer, TLSConfig: o.TLSConfig, DialTimeout: o.DialTimeout, ClientName: o.ClientName, Username: o.Username, Password: o.Password,
		CredentialsProvider: o.CredentialsProvider, CredentialsProviderContext: o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,
	}, ""), o.Addrs)
}

// server is how a client with these options connects to addr, or to any server if that is empty.
func server(o *redis.Options, addr string) settings.Server {
	return settings.Server{
		Addr: addr, Dial: dialer(o, addr), Credentials: credentials(o), DB: o.DB, ClientName: o.ClientName, Timeout: max(o.DialTimeout, 0),
	}
}

func dialer(o *redis.Options, addr string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	open := o.Dialer
	if open == nil && o.TLSConfig != nil {
		open = (&tls.Dialer{Config: o.TLSConfig}).DialContext
	} else if open == nil {
		open = new(net.Dialer).DialContext
	}
	network := o.Network
	if network == "" && strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		return open(ctx, cmp.Or(network, "tcp"), addr)
	}
}

// credentials are those that go-redis would use, in its order.
func credentials(o *redis.Options) func(context.Context, string) (string, string, error) {
	switch {
	case o.StreamingCredentialsProvider != nil:
		return func(context.Context, string) (user, pass string, err error) {
			now, unsubscribe, err := o.StreamingCredentialsProvider.Subscribe(&ignorer{})
			if err != nil {
				return "", "", err
			}
			user, pass = now.BasicAuth()
			return user, pass, unsubscribe()
		}
	case o.CredentialsProviderContext != nil:
		return func(ctx context.Context, _ string) (string, string, error) { return o.CredentialsProviderContext(ctx) }
	case o.CredentialsProvider != nil:
		return func(context.Context, string) (string, string, error) {
			user, pass := o.CredentialsProvider()
			return user, pass, nil
		}
	}
	return settings.Fixed(login(o.Username, o.Password))
}

// login is what go-redis sends: no user without a password.
func login(user, pass string) (string, string) {
	if pass == "" {
		user = ""
	}
	return user, pass
}

// ignorer hears of credentials that change, and needs them no more.
type ignorer struct{ _ byte } // not empty: each has an address of its own, by which providers know listeners

func (*ignorer) OnNext(auth.Credentials) {}
func (*ignorer) OnError(error)           {}
