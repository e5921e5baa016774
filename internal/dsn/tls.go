package dsn

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strconv"
)

// TLS is how to speak TLS to the hosts: as given, with what the URL says; nil: not at all. The
// parameters ca, cert and key name files in the form PEM: the authorities to trust in place of
// the system's, and what the client shows. servername is what the hosts' certificates have to
// show in place of the host.
func (u *URL) TLS(given *tls.Config) (*tls.Config, error) {
	ca, cert, key, name := u.Parameters["ca"], u.Parameters["cert"], u.Parameters["key"], u.Parameters["servername"]
	wanted := u.secure || ca+cert+key+name != ""
	if wish, ok := u.Parameters["tls"]; ok {
		on, err := strconv.ParseBool(wish)
		if err != nil {
			return nil, invalid("parameter tls: %q is neither true nor false", wish)
		}
		if !on && (wanted || given != nil) {
			return nil, invalid("the parameter tls says that the connection is not encrypted, but the scheme, ca, cert, key, servername " +
				"or Options.TLS say that it is; leave out one of them")
		}
		wanted = on
	}
	if !wanted {
		return given, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if given != nil {
		config = given.Clone()
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, invalid("parameter ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalid("parameter ca: %s has no certificate in the form PEM", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, invalid("the parameters cert and key go together; give both or neither")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, invalid("parameters cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if name != "" {
		config.ServerName = name
	}
	return config, nil
}
