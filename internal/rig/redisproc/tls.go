package redisproc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificate names the PEM files of a temporary certificate that is its own authority. It is valid for both
// ends of a connection, for 127.0.0.1, ::1 and localhost, and for three months.
type Certificate struct{ Cert, Key string }

// NewCertificate writes a certificate and its key into dir, which must exist.
func NewCertificate(dir string) (*Certificate, error) {
	return NewCertificateLike(dir, func(*x509.Certificate) {})
}

// NewCertificateLike is NewCertificate with a change to the certificate.
func NewCertificateLike(dir string, change func(*x509.Certificate)) (*Certificate, error) {
	c := &Certificate{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	if err := c.writeFiles(change); err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return c, nil
}

func (c *Certificate) writeFiles(change func(*x509.Certificate)) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	cert := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{Organization: []string{"Holdfast test"}},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(90 * 24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	change(cert)
	public, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(c.Cert, "CERTIFICATE", public), writePEM(c.Key, "PRIVATE KEY", secret))
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// Client returns a configuration that trusts the certificate and presents it.
func (c *Certificate) Client() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, nil
}
