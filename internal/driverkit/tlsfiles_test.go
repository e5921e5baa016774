package driverkit_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

var tlsGrammar = driverkit.Grammar{Usual: []string{"rediss"}, Schemes: map[string]driverkit.Scheme{"rediss": {Example: "rediss://host", Port: "6379", TLS: true}}}

// certFiles are a certificate and its key, which the test can replace.
type certFiles struct {
	t         *testing.T
	cert, key string
	made      *redisproc.Certificate
}

func newFiles(t *testing.T) *certFiles {
	dir := t.TempDir()
	f := &certFiles{t: t, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	f.replace(func(*x509.Certificate) {})
	return f
}

// replace replaces the certificate and its key.
func (f *certFiles) replace(like func(*x509.Certificate)) {
	f.t.Helper()
	var err error
	if f.made, err = redisproc.NewCertificateLike(f.t.TempDir(), like); err != nil {
		f.t.Fatal(err)
	}
	f.copyFile(f.made.Cert, f.cert)
	f.copyFile(f.made.Key, f.key)
}

func (f *certFiles) copyFile(from, to string) {
	f.t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// serverConfig returns a server's configuration with the files as they are now.
func (f *certFiles) serverConfig() *tls.Config {
	f.t.Helper()
	config, err := f.made.Client()
	if err != nil {
		f.t.Fatal(err)
	}
	return config
}

func (f *certFiles) openURL(parameters string) (*driverkit.URL, *tls.Config) {
	f.t.Helper()
	u, err := tlsGrammar.Parse("rediss://host/?" + parameters)
	if err != nil {
		f.t.Fatal(err)
	}
	config, err := u.TLS(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return u, config
}

// configForHost returns config for a host, as drivers do.
func configForHost(config *tls.Config, host string) *tls.Config {
	config = config.Clone()
	config.ServerName = host
	return config
}

// A handshake sends the current certificate, and a check of its expiry sees the same certificate.
func TestHandshakesReadClientFiles(t *testing.T) {
	t.Parallel()
	server, client := newFiles(t), newFiles(t)
	u, config := client.openURL("ca=" + server.cert + "&cert=" + client.cert + "&key=" + client.key)
	accept := func() *tls.Config {
		c := server.serverConfig()
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, client.serverConfig().RootCAs // it knows the present certificate only
		return c
	}
	for _, when := range []string{"at first", "after a change", "after another"} {
		if text := handshakeError(t, accept(), configForHost(config, "127.0.0.1")); text != "" {
			t.Errorf("%s: %s", when, text)
		}
		client.replace(func(*x509.Certificate) {})
	}
	fresh, err := u.FreshTLS(config)
	if err != nil {
		t.Fatal(err)
	}
	if want := client.serverConfig().Certificates[0].Certificate[0]; string(fresh.Certificates[0].Certificate[0]) != string(want) {
		t.Error("FreshTLS() returned another certificate than the file has")
	}
	_, config = client.openURL("ca=" + server.cert + "&cert=" + client.cert + "&key=" + client.key)
	if text := handshakeError(t, server.serverConfig(), configForHost(config, "127.0.0.1")); text != "" { // this server asks for no client certificate
		t.Error(text)
	}
}

// The error of the handshake names the files and the fix, and does not blame the server.
func TestBadClientFilesAreNamed(t *testing.T) {
	t.Parallel()
	server, client := newFiles(t), newFiles(t)
	u, config := client.openURL("ca=" + server.cert + "&cert=" + client.cert + "&key=" + client.key)
	accept := server.serverConfig()
	accept.ClientAuth = tls.RequireAnyClientCert
	refused := func(what string, words ...string) {
		t.Helper()
		text := handshakeError(t, accept, configForHost(config, "127.0.0.1"))
		_, err := u.FreshTLS(config)
		for _, text := range []string{text, err.Error()} {
			for _, word := range words {
				if !strings.Contains(text, word) || strings.Contains(text, "PRIVATE KEY") {
					t.Errorf("%s: error %q does not name %s", what, text, word)
				}
			}
			if mend := driverkit.URLOptionNames.TLSFix(text); !strings.Contains(mend, "into these files") {
				t.Errorf("%s: fix for %q = %q", what, text, mend)
			}
		}
	}
	client.copyFile(server.key, client.key)
	refused("the key of another certificate", client.cert, client.key, "does not match")
	if err := os.WriteFile(client.cert, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("an empty file", client.cert, "PEM")
	if err := os.Remove(client.key); err != nil {
		t.Fatal(err)
	}
	refused("a file that is gone", client.key, "no such file")
}

// Authorities that were removed from the file are not trusted any more. The host is still checked, by name and
// by address.
func TestNewAuthoritiesReplaceOldOnes(t *testing.T) {
	t.Parallel()
	server := newFiles(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	server.copyFile(server.cert, ca)
	u, config := server.openURL("ca=" + ca)
	old := server.serverConfig()
	server.replace(func(*x509.Certificate) {})
	server.copyFile(server.cert, ca)
	if text := handshakeError(t, server.serverConfig(), configForHost(config, "localhost")); !strings.Contains(text, "unknown authority") {
		t.Errorf("the old configuration fails too: %q", text)
	}
	for what, c := range map[string]struct {
		server     *tls.Config
		host, want string
	}{
		"the new authority": {server.serverConfig(), "localhost", ""},
		"its address":       {server.serverConfig(), "127.0.0.1", ""},
		"the old authority": {old, "localhost", "unknown authority"},
		"another name":      {server.serverConfig(), "db.example", "certificate is valid for"},
		"another address":   {server.serverConfig(), "10.1.2.3", "certificate is valid for"},
	} {
		fresh, err := u.FreshTLS(config)
		if err != nil {
			t.Fatal(err)
		}
		if text := handshakeError(t, c.server, configForHost(fresh, c.host)); !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: %q, want %q", what, text, c.want)
		}
	}
	broken := func(want string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.FreshTLS(config)
		if err == nil || !strings.Contains(err.Error(), ca) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(driverkit.URLOptionNames.TLSFix(err.Error()), "into this file") {
			t.Errorf("FreshTLS() = %v, want %s and the file", err, want)
		}
	}
	broken("no certificate", os.WriteFile(ca, []byte("none"), 0o600))
	broken("no such file", os.Remove(ca))
}

// The caller's configuration stays unchanged.
func TestURLsWithoutFilesKeepTLSConfig(t *testing.T) {
	t.Parallel()
	u, err := tlsGrammar.Parse("rediss://host/")
	if err != nil {
		t.Fatal(err)
	}
	given := &tls.Config{RootCAs: x509.NewCertPool()}
	if fresh, err := u.FreshTLS(given); err != nil || fresh != given {
		t.Errorf("FreshTLS() = %p, %v, want %p", fresh, err, given)
	}
	if fresh, err := u.FreshTLS(nil); err != nil || fresh != nil {
		t.Errorf("FreshTLS(nil) = %p, %v", fresh, err)
	}
}
