// Package exam is what the doctors of the drivers share: how they note what they find, and
// the rules that are the same for every service.
package exam

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

// Checks are the names of all, of all services.
var Checks = []string{
	"alarm", "clients", "clock", "connections", "disk", "distinct", "durability", "durable", "evicted", "eviction", "failover", "files", "floor", "force",
	"homes", "info", "isolation", "leader", "members", "memory", "min-replicas", "nodes", "patterns", "persistence", "pooler", "promoted", "quarantine",
	"quorum", "reach", "replay", "replicas", "rights", "role", "round-trip", "run", "schema", "scripts", "sentinels", "sessions", "set", "siblings", "slots",
	"slowlog", "tables", "tls", "ttl", "version", "wake",
}

// TTL is that of leases, where a doctor is told none.
const TTL = 10 * time.Second

// Notes are what was found about one node, or about a service. They are not safe for
// concurrent use.
type Notes struct {
	Node  string // empty: it is the service
	Found []driver.Finding
}

// Add notes a finding. What is bad and comes without a mend gets that of its check, and otherwise what its text says at its end, behind a semicolon.
func (n *Notes) Add(check string, v driver.Verdict, text, mend string) {
	if v == driver.VerdictFault || v == driver.VerdictWarning {
		if mend = cmp.Or(mend, usual[check]); mend == "" {
			text, mend = split(text)
		}
		mend = cmp.Or(mend, "look into the log of the server")
	}
	n.Found = append(n.Found, driver.Finding{Node: n.Node, Check: check, Verdict: v, Text: text, Mend: mend})
}

// usual is what mends most findings of a check.
var usual = map[string]string{
	"reach":  "start it, or correct its address, or fix the network to it",
	"quorum": "start those that are down, or fix the network to them",
}

// Closed is what a doctor finds whose driver has been closed.
func Closed(err error) []driver.Finding {
	return []driver.Finding{{Check: "reach", Verdict: driver.VerdictFault, Text: err.Error(), Mend: "diagnose before Close"}}
}

// Fault notes an error that says at its end, behind a semicolon, what mends it.
func (n *Notes) Fault(check string, err error) {
	text, mend := split(err.Error())
	n.Add(check, driver.VerdictFault, text, mend)
}

// split parts what is wrong from what mends it.
func split(text string) (what, mend string) {
	if i := strings.LastIndex(text, "; "); i >= 0 {
		return text[:i], text[i+2:]
	}
	return text, ""
}

// OK notes that all is well.
func (n *Notes) OK(check, format string, args ...any) {
	n.Add(check, driver.VerdictOK, fmt.Sprintf(format, args...), "")
}

// Pace measures a round trip, and compares it with the time that a request of a lease is
// given.
func (n *Notes) Pace(limit time.Duration, ask func() error) error {
	took, err := roundTrip(limit, ask)
	if err != nil {
		return err
	}
	verdict := driver.VerdictWarning
	switch {
	case took < limit/4:
		n.OK("round-trip", "%v; a request may take %v", took.Round(10*time.Microsecond), limit)
		return nil
	case took >= limit:
		verdict = driver.VerdictFault
	}
	n.Add("round-trip", verdict, fmt.Sprintf("a round trip takes %v, and requests of these leases are given up after %v", took.Round(10*time.Microsecond), limit),
		"use a longer TTL, or servers that are nearer or less busy")
	return nil
}

// roundTrip returns the median of three round trips. The first answers of a server that has just started are slow. So it
// measures again while the median is, up to six times, or to twice the limit of a request.
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

// soon is when a certificate that ends is told of: what renews certificates by itself does so earlier, unless they live
// for days alone.
const soon = 14 * 24 * time.Hour

// Transport looks at how what is sent travels, and until when the certificates of both ends are good. config is that of the
// connection, if it has one.
func (n *Notes) Transport(conn net.Conn, password bool, config *tls.Config) {
	secure, ok := conn.(*tls.Conn)
	switch {
	case !ok && password && public(conn.RemoteAddr()):
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
	whose, cert := shown(secure.ConnectionState())
	ending := n.ending(whose, cert, now)
	if mine := presented(config); mine != nil && n.ending("the client certificate", mine, now) {
		ending = true
	}
	if !ending {
		n.OK("tls", "%s, certificate until %s", tls.VersionName(secure.ConnectionState().Version), cert.NotAfter.UTC().Format(time.DateOnly))
	}
}

// ending warns of a certificate that ends soon.
func (n *Notes) ending(whose string, cert *x509.Certificate, now time.Time) bool {
	left := cert.NotAfter.Sub(now)
	if left < soon {
		n.Add("tls", driver.VerdictWarning, fmt.Sprintf("%s ends on %s, in %s: nobody can connect then", whose,
			cert.NotAfter.UTC().Format("2006-01-02 15:04 UTC"), rough(left)), "renew it")
	}
	return left < soon
}

// rough is a time for people: in days, or in hours if there are few.
func rough(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// shown is the certificate of the other end, or that of its authority where it ends sooner.
func shown(state tls.ConnectionState) (whose string, first *x509.Certificate) {
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

// presented is the certificate of this client; nil: it has none that is known before it is asked.
func presented(config *tls.Config) *x509.Certificate {
	if config == nil || len(config.Certificates) == 0 || len(config.Certificates[0].Certificate) == 0 {
		return nil
	}
	cert, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		return nil
	}
	return cert
}

// Files looks at the modes of files with passwords and keys, as ssh does. A system without modes has no finding.
func (n *Notes) Files(names ...string) {
	if runtime.GOOS == "windows" {
		return
	}
	for _, name := range names {
		switch info, err := os.Stat(name); {
		case err != nil: // what uses it says why
		case info.Mode().Perm()&0o006 != 0:
			n.Add("files", driver.VerdictWarning, fmt.Sprintf("%s has a secret, and mode %04o, which is for every user of this machine", name, info.Mode().Perm()),
				"chmod o= "+name+", and change the secret if others may have seen it")
		default:
			n.OK("files", "%s is not for every user", name)
		}
	}
}

// public says whether an address is neither of this machine nor of a private network.
func public(addr net.Addr) bool {
	at, err := netip.ParseAddrPort(addr.String())
	ip := at.Addr().Unmap()
	return err == nil && !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast()
}
