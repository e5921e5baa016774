package exam

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestARoundTripIsHeldAgainstTheTimeOfARequest.
func TestARoundTripIsHeldAgainstTheTimeOfARequest(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]driver.Verdict{
		10 * time.Millisecond: driver.VerdictOK, 300 * time.Millisecond: driver.VerdictWarning, time.Second: driver.VerdictFault,
	} {
		synctest.Test(t, func(t *testing.T) {
			var n Notes
			slow := true // one of three that is slow is chance
			err := n.Pace(time.Second, func() error {
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

// TestAPasswordMustNotCrossAPublicNetworkInTheClear.
func TestAPasswordMustNotCrossAPublicNetworkInTheClear(t *testing.T) {
	t.Parallel()
	for addr, bad := range map[string]bool{
		"203.0.113.7:6379": true, "[2001:db8::1]:6379": true, "10.1.2.3:6379": false, "127.0.0.1:6379": false, "[::1]:6379": false, "[fd00::1]:6379": false,
	} {
		for _, password := range []bool{true, false} {
			var n Notes
			n.Transport(at(addr), password, nil)
			if len(n.Found) != 1 || n.Found[0].Bad() != (bad && password) {
				t.Errorf("%s, password %v: %+v", addr, password, n.Found)
			}
		}
	}
}

// far is a connection to an address.
type far struct {
	net.Conn
	addr net.Addr
}

func (f far) RemoteAddr() net.Addr { return f.addr }

func at(addr string) net.Conn {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		panic(err)
	}
	return far{addr: tcp}
}
