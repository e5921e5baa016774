// Package fromrueidis takes the settings of connections for package redlock from the options of rueidis clients.
//
// # What is not carried over
//
// Connections are not shared: locks have one of their own to each server, which rueidis
// does not see. Caching, pipelining, replicas for reading and AlwaysRESP2 mean nothing to
// it. ReplicaOnly and redirects are refused.
package fromrueidis

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/internal/settings"
)

// Settings returns the arguments of redlock.New for the servers of some rueidis
// clients: one server, several independent ones, a master that Sentinels look after
// (Sentinel.MasterSet), or a Redis Cluster (several addresses in InitAddress). It takes what was given to
// rueidis.NewClient, and does not block. The caller may change the options that it
// returns: with one address it cannot know whether that is of a cluster, so set Cluster then.
//
// It carries over the addresses, DialCtxFn, DialFn and Dialer, TLS, user and password or
// AuthCredentialsFn, SelectDB, ClientName, and Dialer.Timeout as Timeout; for Sentinels, those of
// InitAddress alone, their own Dialer, TLS, user and password.
// AuthCredentialsFn gets the address that was dialled, and is called at each new
// connection, whatever RefreshAfter says.
//
// Errors match driver.ErrInvalid: no address, ReplicaOnly, redirects, ForceSingleClient with several
// addresses, AuthCredentialsFn with Sentinels, databases or names that differ, and Sentinels or a
// cluster among several options. For a set of several masters with Sentinels, make a redlock.Node with a
// Failover for each.
func Settings(servers ...rueidis.ClientOption) ([]redlock.Node, *redlock.Options, error) {
	all := make([]settings.Server, len(servers))
	for i, o := range servers {
		addr := strings.Join(o.InitAddress, ",")
		sentinels, several := o.Sentinel.MasterSet != "", len(o.InitAddress) > 1
		switch {
		case len(o.InitAddress) == 0:
			return nil, nil, settings.Refuse(addr, "an InitAddress without addresses", "give it those that the client has")
		case o.ReplicaOnly:
			return nil, nil, settings.Refuse(addr, "ReplicaOnly", "give the options for the master")
		case o.Standalone.EnableRedirect:
			return nil, nil, settings.Refuse(addr, "Standalone.EnableRedirect", "a redirect is a failover, which loses locks; leave it out if there is none")
		case sentinels && o.AuthCredentialsFn != nil:
			return nil, nil, settings.Refuse(addr, "AuthCredentialsFn for Sentinels",
				"set it to nil in a copy of the options, give Sentinel.Username and Sentinel.Password, and for the servers set Credentials in the result")
		case !sentinels && several && o.ForceSingleClient:
			return nil, nil, settings.Refuse(addr, "ForceSingleClient with several addresses", "rueidis uses the first alone; give that one")
		case (sentinels || several) && len(servers) > 1:
			return nil, nil, settings.Refuse(addr, "a client of Sentinels or of a cluster, in a set,",
				"give one such client; for a set of masters with Sentinels give redlock.New a Node with Failover for each")
		}
		all[i] = settings.Server{
			Addr: addr, Dial: dialer(o), Credentials: credentials(o), DB: o.SelectDB, ClientName: o.ClientName, Timeout: o.Dialer.Timeout,
		}
		switch {
		case sentinels:
			all[i].Dial = either(o)
			return settings.Failover(all[i], &redlock.Failover{
				Sentinels: o.InitAddress, Master: o.Sentinel.MasterSet, Username: o.Sentinel.Username, Password: o.Sentinel.Password,
			})
		case several:
			return settings.Cluster(all[i], o.InitAddress)
		}
	}
	return settings.Join(all)
}

// either dials Sentinels and servers, each as rueidis does.
func either(o rueidis.ClientOption) func(ctx context.Context, network, addr string) (net.Conn, error) {
	server := dialer(o)
	o.Dialer, o.TLSConfig = o.Sentinel.Dialer, o.Sentinel.TLSConfig
	sentinel, sentinels := dialer(o), o.InitAddress
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slices.Contains(sentinels, addr) {
			return sentinel(ctx, network, addr)
		}
		return server(ctx, network, addr)
	}
}

func dialer(o rueidis.ClientOption) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch {
		case o.DialCtxFn != nil:
			return o.DialCtxFn(ctx, addr, &o.Dialer, o.TLSConfig)
		case o.DialFn != nil:
			d := o.Dialer
			d.Deadline, _ = ctx.Deadline()
			return o.DialFn(addr, &d, o.TLSConfig)
		case o.TLSConfig != nil:
			return (&tls.Dialer{NetDialer: &o.Dialer, Config: o.TLSConfig}).DialContext(ctx, network, addr)
		}
		return o.Dialer.DialContext(ctx, network, addr)
	}
}

func credentials(o rueidis.ClientOption) func(context.Context, string) (string, string, error) {
	if o.AuthCredentialsFn == nil {
		return settings.Fixed(o.Username, o.Password)
	}
	return func(_ context.Context, addr string) (string, string, error) {
		c, err := o.AuthCredentialsFn(rueidis.AuthCredentialsContext{Address: address(addr)})
		return c.Username, c.Password, err
	}
}

// address is a net.Addr as the caller wrote it.
type address string

// Network implements net.Addr.
func (a address) Network() string {
	if strings.HasPrefix(string(a), "/") {
		return "unix"
	}
	return "tcp"
}

func (a address) String() string { return string(a) }
