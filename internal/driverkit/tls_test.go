package driverkit_test

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// The error asks for an authority only if the authority is unknown.
func TestCertificateErrorsHaveFixes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	usual := func(*x509.Certificate) {}
	for name, c := range map[string]struct {
		cert           func(*x509.Certificate)
		server, client func(*tls.Config)
		mend           string
	}{
		"an authority that is not known": {usual, nil, func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }, "give the CA that signed its certificate by ca"},
		"expired":                        {func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, nil, nil, "renew its certificate"},
		"not valid yet":                  {func(c *x509.Certificate) { c.NotBefore = now.Add(time.Hour) }, nil, nil, "set the clock of this machine"},
		"another name":                   {usual, nil, func(c *tls.Config) { c.ServerName = "db.example" }, "use a name of its certificate as the host"},
		"another address":                {usual, nil, func(c *tls.Config) { c.ServerName = "10.1.2.3" }, "by servername"},
		"no address":                     {func(c *x509.Certificate) { c.IPAddresses = nil }, nil, func(c *tls.Config) { c.ServerName = "::1" }, "by servername"},
		"no name": {
			func(c *x509.Certificate) { c.DNSNames = nil }, nil, func(c *tls.Config) { c.ServerName = "localhost" }, "use a name of its certificate",
		},
		"for clients alone": {
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, nil, nil, "give it a certificate that is fit for servers",
		},
		"no client certificate": {
			usual, func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert },
			func(c *tls.Config) { c.Certificates = nil }, "give one that it accepts by cert and key, or Options.TLS",
		},
		"a client certificate that has expired": {usual, func(c *tls.Config) {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, c.RootCAs
			c.Time = func() time.Time { return now.AddDate(1, 0, 0) }
		}, nil, "renew the client certificate, which is given by cert and key"},
		"old versions alone": {
			usual, func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, "TLS 1.2 or newer",
		},
		"all is well": {usual, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, err := redisproc.NewCertificateLike(t.TempDir(), c.cert)
			if err != nil {
				t.Fatal(err)
			}
			config := func(change func(*tls.Config)) *tls.Config {
				config, err := cert.Client()
				if err != nil {
					t.Fatal(err)
				}
				config.ServerName = "localhost"
				if change != nil {
					change(config)
				}
				return config
			}
			text := handshakeError(t, config(c.server), config(c.client))
			if mend := driverkit.URLOptionNames.TLSFix(text); !strings.Contains(mend, c.mend) || c.mend == "" && mend != "" {
				t.Errorf("fix for %q = %q, want %q", text, mend, c.mend)
			}
		})
	}
}

// The client has that authority, so giving the same one again does not help.
func TestExpiredAuthorityIsIgnored(t *testing.T) {
	t.Parallel()
	leaf := func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = false, false }
	made := func(change func(*x509.Certificate)) tls.Certificate {
		cert, err := redisproc.NewCertificateLike(t.TempDir(), change)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(cert.Cert, cert.Key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	authority, server := made(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), made(leaf)
	signer := server.PrivateKey.(crypto.Signer)
	der, err := x509.CreateCertificate(rand.Reader, server.Leaf, authority.Leaf, signer.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.Leaf)
	signed := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: signer}
	text := handshakeError(t, &tls.Config{Certificates: []tls.Certificate{signed}}, &tls.Config{RootCAs: roots, ServerName: "localhost"})
	if mend := driverkit.URLOptionNames.TLSFix(text); !strings.Contains(mend, "or that of its authority") {
		t.Errorf("fix for %q = %q", text, mend)
	}
}

// handshakeError returns the error of a client that connects and reads; "" if there is none.
func handshakeError(t *testing.T, server, client *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			conn.Write([]byte("x")) // the handshake comes first
			conn.Close()
		}
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	if _, err = conn.Read(make([]byte, 1)); err != nil {
		return err.Error()
	}
	return ""
}
