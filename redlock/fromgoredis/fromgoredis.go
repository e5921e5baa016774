// Package fromgoredis takes the settings of connections for package redlock from the options of go-redis clients.
//
// # What is not carried over
//
// Connections are not shared: locks have one of their own to each server, which
// go-redis does not see. Hooks of a client (AddHook) are not called for it, and pools,
// retries, the timeouts of single commands and the protocol mean nothing to it.
// Options with a Limiter or with OnConnect are refused.
package fromgoredis

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/internal/settings"
)

// Settings returns the arguments of redlock.Open for the servers of some go-redis
// clients: one, or several independent ones. It takes what was given to redis.NewClient,
// or what Options of a client returns, and does not block. The caller may change the
// options that it returns.
//
// It carries over the address and network, the dialer, TLS, user and password or what
// provides them, the number of the database, the name of the client, and DialTimeout as
// Timeout (5 s in what Options of a client returns, unless it was set). A Dialer secures
// its connections itself, as for go-redis. Credentials are asked for at each new
// connection, also where they come as a stream.
//
// Errors match redlock.ErrInvalid: a Limiter, OnConnect, a client of Sentinels, and
// databases or names that differ.
func Settings(servers ...*redis.Options) ([]redlock.Node, *redlock.Options, error) {
	all := make([]settings.Server, len(servers))
	for i, o := range servers {
		addr := cmp.Or(o.Addr, "localhost:6379")
		switch {
		case addr == "FailoverClient":
			return nil, nil, settings.Refuse(addr, "Sentinels", "their addresses are not in the options: give redlock.Open a Node with Failover, or redlock.OpenURL redis+sentinel://s1:26379,s2:26379/NAME")
		case o.Limiter != nil:
			return nil, nil, settings.Refuse(addr, "Limiter", "set it to nil in a copy of the options if locks may do without it")
		case o.OnConnect != nil:
			return nil, nil, settings.Refuse(addr, "OnConnect", "set it to nil in a copy of the options if locks may do without it")
		}
		all[i] = settings.Server{
			Addr: addr, Dial: dialer(o, addr), Credentials: credentials(o), DB: o.DB, ClientName: o.ClientName, Timeout: max(o.DialTimeout, 0),
		}
	}
	return settings.Join(all)
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
	return settings.Fixed(o.Username, o.Password)
}

// ignorer hears of credentials that change, and needs them no more.
type ignorer struct{ _ byte } // not empty: each has an address of its own, by which providers know listeners

func (*ignorer) OnNext(auth.Credentials) {}
func (*ignorer) OnError(error)           {}
