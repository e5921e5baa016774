package driverkit

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func TestRoundTripIsComparedWithRequestTime(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]driver.Verdict{
		10 * time.Millisecond: driver.VerdictOK, 300 * time.Millisecond: driver.VerdictWarning, time.Second: driver.VerdictFault,
	} {
		synctest.Test(t, func(t *testing.T) {
			var n Findings
			slow := true // one slow answer of three is chance
			err := n.CheckRoundTrip(time.Second, func() error {
				if slow {
					time.Sleep(10 * time.Second)
				} else {
					time.Sleep(took)
				}
				slow = false
				return nil
			})
			if err != nil || len(n.Found) != 1 || n.Found[0].Verdict != want || n.Found[0].Check != "round-trip" {
				t.Errorf("%v: %+v, %v; want %s", took, n.Found, err, want)
			}
		})
	}
}

func TestRequestTimeIsShownInMilliseconds(t *testing.T) {
	t.Parallel()
	var n Findings
	err := n.CheckRoundTrip(5*time.Second/3, func() error { return nil })
	if err != nil || len(n.Found) != 1 || !strings.HasSuffix(n.Found[0].Text, "a request may take 1.667s") {
		t.Errorf("%+v, %v", n.Found, err)
	}
}

func TestColdServerIsMeasuredAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n Findings
		cold := []time.Duration{500 * time.Millisecond, 400 * time.Millisecond, 300 * time.Millisecond}
		err := n.CheckRoundTrip(time.Second, func() error {
			if len(cold) == 0 {
				time.Sleep(10 * time.Millisecond)
				return nil
			}
			time.Sleep(cold[0])
			cold = cold[1:]
			return nil
		})
		if err != nil || len(n.Found) != 1 || n.Found[0].Verdict != driver.VerdictOK {
			t.Errorf("%+v, %v", n.Found, err)
		}
	})
}

// A finding that names its fix gets no default fix.
func TestFindingKeepsGivenFix(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ check, text, mend, wantText, wantMend string }{
		{"quarantine", "votes in 1m2s; wait for that", "", "votes in 1m2s", "wait for that"},
		{"quarantine", "votes in 1m2s", "", "votes in 1m2s", "look into the log of the server"},
		{"quarantine", "a; b", "mend it", "a; b", "mend it"},
		{"reach", "a; b", "", "a; b", usualFixes["reach"]},
	} {
		var n Findings
		n.Add(row.check, driver.VerdictWarning, row.text, row.mend)
		if f := n.Found[0]; f.Text != row.wantText || f.Fix != row.wantMend {
			t.Errorf("%+v: %+v", row, f)
		}
	}
}

func TestClearPasswordOnPublicNetworkIsWarned(t *testing.T) {
	t.Parallel()
	for addr, bad := range map[string]bool{
		"203.0.113.7:6379": true, "[2001:db8::1]:6379": true, "10.1.2.3:6379": false, "127.0.0.1:6379": false, "[::1]:6379": false, "[fd00::1]:6379": false,
	} {
		for _, password := range []bool{true, false} {
			var n Findings
			n.CheckTLS(connTo(addr), password, nil)
			if len(n.Found) != 1 || n.Found[0].Bad() != (bad && password) {
				t.Errorf("%s, password %v: %+v", addr, password, n.Found)
			}
		}
	}
}

// The command rejects unlisted names in its list of ignored checks. The name of a check is an argument of a
// method of a doctor, or the key of a defect.
func TestEveryCheckIsListed(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`\b(?:bad|OK|Add|Fault|failed|hidden|add[A-Z][a-z]+)\("([a-z-]+)"|Check: +"([a-z-]+)"|defects\["([a-z-]+)"\]|` +
		`map\[string\]error\{"([a-z-]+)"|\{"([a-z-]+)", [el]\.`)
	seen := make(map[string]bool)
	for _, folder := range []string{
		"redis", "redis/internal/place", "etcd", "zookeeper", "postgres", "sqllock", "sqllock/sqlite", "sqllock/mysql", "sharding", "internal/driverkit",
	} {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range named.FindAllStringSubmatch(string(text), -1) {
				seen[strings.Join(found[1:], "")] = true
			}
		}
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, Checks) {
		t.Errorf("doctors run the checks %q, and the list has %q", got, Checks)
	}
}

// farConn is a connection whose other end has the given address.
type farConn struct {
	net.Conn
	addr net.Addr
}

func (f farConn) RemoteAddr() net.Addr { return f.addr }

func connTo(addr string) net.Conn {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		panic(err)
	}
	return farConn{addr: tcp}
}
