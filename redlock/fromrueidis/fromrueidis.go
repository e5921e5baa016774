// Package fromrueidis takes the settings of connections for package redlock from the options of rueidis clients.
//
// # What is not carried over
//
// Connections are not shared: locks have one of their own to each server, which rueidis
// does not see. Caching, pipelining, replicas for reading and AlwaysRESP2 mean nothing to
// it. Sentinels, several addresses (which rueidis takes for a cluster), ReplicaOnly and
// redirects are refused.
package fromrueidis

import (
	"context"
	"crypto/tls"
	"net"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/internal/settings"
)

// Settings returns the arguments of redlock.Open for the servers of some rueidis
// clients: one, or several independent ones. It takes what was given to
// rueidis.NewClient, and does not block. The caller may change the options that it
// returns.
//
// It carries over the address, DialCtxFn, DialFn and Dialer, TLS, user and password or
// AuthCredentialsFn, SelectDB, ClientName, and Dialer.Timeout as Timeout.
// AuthCredentialsFn gets the address as it stands in InitAddress, and is called at each new
// connection, whatever RefreshAfter says.
//
// Errors match redlock.ErrInvalid: Sentinels, not exactly one address, ReplicaOnly,
// redirects, and databases or names that differ.
func Settings(servers ...rueidis.ClientOption) ([]redlock.Node, *redlock.Options, error) {
	all := make([]settings.Server, len(servers))
	for i, o := range servers {
		addr := strings.Join(o.InitAddress, ",")
		switch {
		case o.Sentinel.MasterSet != "":
			return nil, nil, settings.Refuse(addr, "Sentinels", "give redlock.Open a Node with Failover, or redlock.OpenURL redis+sentinel://s1:26379,s2:26379/NAME")
		case len(o.InitAddress) != 1:
			return nil, nil, settings.Refuse(addr, "an InitAddress that has not one address",
				"to rueidis these are a cluster; give options for each of several independent servers")
		case o.ReplicaOnly:
			return nil, nil, settings.Refuse(addr, "ReplicaOnly", "give the options for the master")
		case o.Standalone.EnableRedirect:
			return nil, nil, settings.Refuse(addr, "Standalone.EnableRedirect", "a redirect is a failover, which loses locks; leave it out if there is none")
		}
		all[i] = settings.Server{
			Addr: addr, Dial: dialer(o), Credentials: credentials(o), DB: o.SelectDB, ClientName: o.ClientName, Timeout: o.Dialer.Timeout,
		}
	}
	return settings.Join(all)
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
