package driverkit

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Checks lists the names of all checks of all services.
var Checks = []string{
	"alarm", "clients", "clock", "connections", "disk", "distinct", "durability", "durable", "evicted", "eviction", "failover", "files", "floor", "force",
	"homes", "info", "isolation", "leader", "members", "memory", "min-replicas", "nodes", "patterns", "persistence", "pooler", "promoted", "quarantine",
	"quorum", "reach", "replay", "replicas", "rights", "role", "round-trip", "run", "schema", "scripts", "sentinels", "sessions", "set", "siblings", "slots",
	"slowlog", "tables", "tls", "ttl", "version", "wake",
}

// DoctorTTL is the TTL that a doctor assumes if it gets none.
const DoctorTTL = 10 * time.Second

// Findings collects the findings about one node, or about a service. It is not safe for concurrent use.
type Findings struct {
	Node  string // empty: the service as a whole
	Found []driver.Finding
}

// Add adds a finding. A bad finding without a fix gets the usual fix of its check, or else the end of its text
// after the last semicolon.
func (n *Findings) Add(check string, v driver.Verdict, text, mend string) {
	if v == driver.VerdictFault || v == driver.VerdictWarning {
		if mend = cmp.Or(mend, usualFixes[check]); mend == "" {
			text, mend = splitFix(text)
		}
		mend = cmp.Or(mend, "look into the log of the server")
	}
	n.Found = append(n.Found, driver.Finding{Node: n.Node, Check: check, Verdict: v, Text: text, Fix: mend})
}

// usualFixes holds the fix for most findings of a check.
var usualFixes = map[string]string{
	"reach":  "start it, or correct its address, or fix the network to it",
	"quorum": "start those that are down, or fix the network to them",
}

// ClosedFindings returns the findings of a doctor whose driver is closed.
func ClosedFindings(err error) []driver.Finding {
	return []driver.Finding{{Check: "reach", Verdict: driver.VerdictFault, Text: err.Error(), Fix: "diagnose before Close"}}
}

// Fault adds an error that names its fix at its end, after the last semicolon.
func (n *Findings) Fault(check string, err error) {
	text, mend := splitFix(err.Error())
	n.Add(check, driver.VerdictFault, text, mend)
}

// splitFix separates a problem from its fix.
func splitFix(text string) (what, mend string) {
	if i := strings.LastIndex(text, "; "); i >= 0 {
		return text[:i], text[i+2:]
	}
	return text, ""
}

// OK adds a check without a problem.
func (n *Findings) OK(check, format string, args ...any) {
	n.Add(check, driver.VerdictOK, fmt.Sprintf(format, args...), "")
}

// CheckRoundTrip measures a round trip, and compares it with the time limit of a lease's requests.
func (n *Findings) CheckRoundTrip(limit time.Duration, ask func() error) error {
	took, err := roundTrip(limit, ask)
	if err != nil {
		return err
	}
	verdict := driver.VerdictWarning
	switch {
	case took < limit/4:
		n.OK("round-trip", "%v; a request may take %v", took.Round(10*time.Microsecond), limit.Round(time.Millisecond))
		return nil
	case took >= limit:
		verdict = driver.VerdictFault
	}
	n.Add("round-trip", verdict, fmt.Sprintf("a round trip takes %v, and requests of these leases are given up after %v",
		took.Round(10*time.Microsecond), limit.Round(time.Millisecond)),
		"use a longer TTL, or servers that are nearer or less busy")
	return nil
}

// clockNoise is the difference between clocks that is not reported.
const clockNoise = time.Second

// CheckClock compares this machine's clock with the server's, which read stores in microseconds. The server may have read
// it at any time of the round trip.
func (n *Findings) CheckClock(read func(at *int64) error) error {
	var at int64
	before := time.Now()
	if err := read(&at); err != nil {
		return err
	}
	rtt := time.Since(before)
	off := time.UnixMicro(at).Sub(before.Add(rtt / 2))
	if off.Abs() > clockNoise+rtt {
		n.Add("clock", driver.VerdictWarning, fmt.Sprintf("its clock differs from this machine's by %v: if it was set, leases end early or late",
			off.Round(time.Millisecond)), "have a time service slew both")
		return nil
	}
	n.OK("clock", "%v from this machine's", off.Round(time.Millisecond))
	return nil
}

// roundTrip returns the median of three round trips. A server that has just started answers slowly at first,
// so roundTrip measures again while the median is slow, up to six times or twice the limit of a request.
func roundTrip(limit time.Duration, ask func() error) (time.Duration, error) {
	var last []time.Duration
	for begun := time.Now(); ; {
		before := time.Now()
		if err := ask(); err != nil {
			return 0, err
		}
		last = append(last, time.Since(before))
		if len(last) < 3 {
			continue
		}
		median := slices.Sorted(slices.Values(last[len(last)-3:]))[1]
		if median < limit/4 || len(last) == 6 || time.Since(begun) >= 2*limit {
			return median, nil
		}
	}
}

// renewalDue is the remaining life of a certificate below which it is reported. Programs that renew
// certificates do so earlier, unless the certificates live for a few days only.
const renewalDue = 14 * 24 * time.Hour

// CheckTLS checks the encryption of a connection, and the end dates of the certificates of both ends. config is the TLS
// configuration of the connection, or nil.
func (n *Findings) CheckTLS(conn net.Conn, password bool, config *tls.Config) {
	secure, ok := conn.(*tls.Conn)
	switch {
	case !ok && password && isPublic(conn.RemoteAddr()):
		n.Add("tls", driver.VerdictWarning, "the password crosses a public network as it is", "turn TLS on, by the URL or in the options")
		return
	case !ok:
		n.OK("tls", "none")
		return
	}
	now := time.Now()
	if config != nil && config.Time != nil {
		now = config.Time()
	}
	whose, cert := firstToExpire(secure.ConnectionState())
	ending := n.warnIfEnding(whose, cert, now)
	if mine := clientCertificate(config); mine != nil && n.warnIfEnding("the client certificate", mine, now) {
		ending = true
	}
	if !ending {
		n.OK("tls", "%s, certificate until %s", tls.VersionName(secure.ConnectionState().Version), cert.NotAfter.UTC().Format(time.DateOnly))
	}
}

// warnIfEnding warns of a certificate that ends soon, and reports whether it does.
func (n *Findings) warnIfEnding(whose string, cert *x509.Certificate, now time.Time) bool {
	left := cert.NotAfter.Sub(now)
	if left < renewalDue {
		n.Add("tls", driver.VerdictWarning, fmt.Sprintf("%s ends on %s, in %s: nobody can connect then", whose,
			cert.NotAfter.UTC().Format("2006-01-02 15:04 UTC"), roughDuration(left)), "renew it")
	}
	return left < renewalDue
}

// roughDuration formats a time for people: in days, or in hours if it is short.
func roughDuration(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// firstToExpire returns the certificate of the other end, or of its authority if the authority's expires sooner.
func firstToExpire(state tls.ConnectionState) (whose string, first *x509.Certificate) {
	for _, chain := range state.VerifiedChains {
		least := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first == nil || least.NotAfter.After(first.NotAfter) {
			first = least
		}
	}
	leaf := state.PeerCertificates[0]
	if first == nil || first.Equal(leaf) {
		return "its certificate", leaf
	}
	return "the certificate of its authority", first
}

// clientCertificate returns the certificate of this client; nil if the configuration has none before a server
// asks for it.
func clientCertificate(config *tls.Config) *x509.Certificate {
	if config == nil || len(config.Certificates) == 0 || len(config.Certificates[0].Certificate) == 0 {
		return nil
	}
	cert, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		return nil
	}
	return cert
}

// CheckFileModes checks the modes of files with passwords and keys, as ssh does. On a system without file modes it
// reports nothing.
func (n *Findings) CheckFileModes(names ...string) {
	if runtime.GOOS == "windows" {
		return
	}
	for _, name := range names {
		switch info, err := os.Stat(name); {
		case err != nil: // the code that opens the file reports the error
		case info.Mode().Perm()&0o006 != 0:
			n.Add("files", driver.VerdictWarning, fmt.Sprintf("%s has a secret, and mode %04o, which is for every user of this machine", name, info.Mode().Perm()),
				"chmod o= "+name+", and change the secret if others may have seen it")
		default:
			n.OK("files", "%s is not for every user", name)
		}
	}
}

// isPublic reports whether an address is neither of this machine nor of a private network.
func isPublic(addr net.Addr) bool {
	at, err := netip.ParseAddrPort(addr.String())
	ip := at.Addr().Unmap()
	return err == nil && !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast()
}
