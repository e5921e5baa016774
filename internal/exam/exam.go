// Package exam is what the doctors of the drivers share: how they note what they find, and
// the rules that are the same for every service.
package exam

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TTL is that of leases, where a doctor is told none.
const TTL = 10 * time.Second

// Notes are what was found about one node, or about a service. They are not safe for
// concurrent use.
type Notes struct {
	Node  string // empty: it is the service
	Found []driver.Finding
}

// Add notes a finding. What is bad and comes without a mend gets that of its check.
func (n *Notes) Add(check string, v driver.Verdict, text, mend string) {
	if v == driver.VerdictFault || v == driver.VerdictWarning {
		mend = cmp.Or(mend, usual[check], "look into the log of the server")
	}
	n.Found = append(n.Found, driver.Finding{Node: n.Node, Check: check, Verdict: v, Text: text, Mend: mend})
}

// usual is what mends most findings of a check.
var usual = map[string]string{
	"reach":  "start it, or correct its address, or mend the network to it",
	"quorum": "start those that are down, or mend the network to them",
}

// Closed is what a doctor finds whose driver has been closed.
func Closed(err error) []driver.Finding {
	return []driver.Finding{{Check: "reach", Verdict: driver.VerdictFault, Text: err.Error(), Mend: "diagnose before Close"}}
}

// Fault notes an error that says at its end, behind a semicolon, what mends it.
func (n *Notes) Fault(check string, err error) {
	text, mend := err.Error(), ""
	if i := strings.LastIndex(text, "; "); i >= 0 {
		text, mend = text[:i], text[i+2:]
	}
	n.Add(check, driver.VerdictFault, text, mend)
}

// OK notes that all is well.
func (n *Notes) OK(check, format string, args ...any) {
	n.Add(check, driver.VerdictOK, fmt.Sprintf(format, args...), "")
}

// Pace measures a round trip, and holds it against the time that a request of a lease is
// given.
func (n *Notes) Pace(limit time.Duration, ask func() error) error {
	times := make([]time.Duration, 3)
	for i := range times {
		before := time.Now()
		if err := ask(); err != nil {
			return err
		}
		times[i] = time.Since(before)
	}
	slices.Sort(times)
	took := times[len(times)/2]
	verdict := driver.VerdictWarning
	switch {
	case took < limit/4:
		n.OK("round-trip", "%v, of %v that a request is given", took.Round(10*time.Microsecond), limit)
		return nil
	case took >= limit:
		verdict = driver.VerdictFault
	}
	n.Add("round-trip", verdict, fmt.Sprintf("a round trip takes %v, and requests of these leases are given up after %v", took.Round(10*time.Microsecond), limit),
		"use a longer TTL, or servers that are nearer or less busy")
	return nil
}

// Transport looks at how what is sent travels, and until when a certificate is good; now is
// nil for the clock. It warns in the last tenth of a certificate's life: what renews
// certificates by itself does so earlier.
func (n *Notes) Transport(conn net.Conn, password bool, now func() time.Time) {
	secure, ok := conn.(*tls.Conn)
	switch {
	case !ok && password && public(conn.RemoteAddr()):
		n.Add("tls", driver.VerdictWarning, "the password crosses a public network as it is", "turn TLS on, by the URL or in the options")
		return
	case !ok:
		n.OK("tls", "none")
		return
	}
	if now == nil {
		now = time.Now
	}
	cert := secure.ConnectionState().PeerCertificates[0]
	if left := cert.NotAfter.Sub(now()); left < cert.NotAfter.Sub(cert.NotBefore)/10 {
		n.Add("tls", driver.VerdictWarning, fmt.Sprintf("its certificate ends in %v", left.Round(time.Hour)), "renew it")
		return
	}
	n.OK("tls", "%s, certificate until %s", tls.VersionName(secure.ConnectionState().Version), cert.NotAfter.Format(time.DateOnly))
}

// public says whether an address is neither of this machine nor of a private network.
func public(addr net.Addr) bool {
	at, err := netip.ParseAddrPort(addr.String())
	ip := at.Addr().Unmap()
	return err == nil && !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast()
}
