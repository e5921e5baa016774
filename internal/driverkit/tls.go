package driverkit

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// TLS returns the TLS configuration for the hosts: given, changed by the parameters of the URL; nil means no
// TLS. The parameters ca, cert and key name PEM files: the authorities to trust in place of the system's, and
// the certificate and key of the client. servername is the name that the hosts' certificates must have in
// place of the host.
//
// Certificates are replaced while clients run, so each handshake reads cert and key again. For ca, the code
// that makes a connection calls FreshTLS before: crypto/tls has no callback for authorities. VerifyConnection
// cannot replace its check, because it does not get the host if that is an address, and because go-sql-driver
// drops the host's name together with the usual check.
func (u *URL) TLS(given *tls.Config) (*tls.Config, error) {
	ca, cert, key, name := u.Parameters["ca"], u.Parameters["cert"], u.Parameters["key"], u.Parameters["servername"]
	wanted := u.secure || ca+cert+key+name != ""
	if wish, ok := u.Parameters["tls"]; ok {
		on, err := strconv.ParseBool(wish)
		if err != nil {
			return nil, invalidError("parameter tls: %q is neither true nor false", wish)
		}
		if !on && (wanted || given != nil) {
			return nil, invalidError("the parameter tls turns encryption off, but the scheme, ca, cert, key, servername " +
				"or Options.TLS turns it on; leave out one of them")
		}
		wanted = on
	}
	if !wanted {
		return given, nil
	}
	if (cert == "") != (key == "") {
		return nil, invalidError("the parameters cert and key go together; give both or neither")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if given != nil {
		config = given.Clone()
	}
	if name != "" {
		config.ServerName = name
	}
	if cert != "" {
		config.GetClientCertificate = func(wanted *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := readPair(cert, key)
			if err == nil && wanted.SupportsCertificate(pair) != nil {
				return &tls.Certificate{}, nil // as crypto/tls does: the server answers with its own error
			}
			return pair, err
		}
	}
	config, err := u.FreshTLS(config)
	if err != nil {
		return nil, invalidError("%w", err)
	}
	return config, nil
}

// FreshTLS returns config, a result of TLS, with the present contents of the files ca, cert and key.
func (u *URL) FreshTLS(config *tls.Config) (*tls.Config, error) {
	ca, cert, key := u.Parameters["ca"], u.Parameters["cert"], u.Parameters["key"]
	if config == nil || ca+cert == "" {
		return config, nil
	}
	config = config.Clone()
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", badAuthorities, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: %s has no certificate in the form PEM", badAuthorities, ca)
		}
	}
	if cert != "" {
		pair, err := readPair(cert, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{*pair} // for code that reads its expiry; a handshake calls GetClientCertificate
	}
	return config, nil
}

// badAuthorities and badPair begin the errors about files.
const (
	badAuthorities = "parameter ca"
	badPair        = "parameters cert and key"
)

// readPair reads the client's certificate and its key.
func readPair(cert, key string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		_, unreadable := errors.AsType[*fs.PathError](err)
		if !unreadable { // otherwise the error names the file
			err = fmt.Errorf("%s and %s: %w", cert, key, err)
		}
		return nil, fmt.Errorf("%s: %w", badPair, err)
	}
	return &pair, nil
}

// SecretFiles returns the files that these parameters of the URL name.
func (u *URL) SecretFiles(parameters ...string) (files []string) {
	for _, name := range parameters {
		if file := u.Parameters[name]; file != "" {
			files = append(files, file)
		}
	}
	return files
}

// TLSNaming holds an engine's names for the settings of TLS.
type TLSNaming struct {
	Authority, Pair string
	ServerName      string // empty: only the host can be changed
}

// URLOptionNames are the parameters of the URLs of this package, and the options of the drivers.
var URLOptionNames = TLSNaming{
	Authority: "ca or Options.TLS", Pair: "cert and key, or Options.TLS", ServerName: "servername or Options.TLS",
}

// TLSFix returns the fix for an error of a TLS handshake, or "" if no certificate can fix it. It compares
// texts of crypto/tls, because some libraries keep only the text of an error.
func (n TLSNaming) TLSFix(text string) string {
	has := func(words string) bool { return strings.Contains(text, words) }
	expired := has("certificate has expired or is not yet valid")
	switch {
	case has(badAuthorities + ": "):
		return "put the certificates of the authorities into this file"
	case has(badPair + ": "):
		return "put a certificate and the key that belongs to it into these files"
	case has("signed by unknown authority"), has("certificate is not trusted"), has("failed to load system roots"):
		return "give the CA that signed its certificate by " + n.Authority
	case expired && has(" is before "):
		return "set the clock of this machine, or of the one that made the certificate, or wait until it is valid"
	case expired:
		return "renew its certificate, or that of its authority if this one has ended"
	case has("x509: certificate is valid for"), has("x509: certificate is not valid for any names"), has("x509: cannot validate certificate for"):
		if n.ServerName == "" {
			return "use a name of its certificate as the host, or give it a certificate with this name"
		}
		return "use a name of its certificate as the host, or give that name by " + n.ServerName + ", or give it a certificate with this name"
	case has("x509: "), has("failed to verify certificate"):
		return "give it a certificate that is fit for servers"
	case has("remote error: tls: expired certificate"):
		return "renew the client certificate, which is given by " + n.Pair
	case has("remote error: tls: protocol version"):
		return "let the server speak TLS 1.2 or newer"
	case has("remote error: tls: "):
		return "it may want another client certificate; give one that it accepts by " + n.Pair
	}
	return ""
}
