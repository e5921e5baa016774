package etcd

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/holdfast-go/holdfast/internal/direct"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// TestAMemberThatHangsIsNotTakenForOneThatSpeaksTLS, or for one that does not, when the connection is given up before the request.
func TestAMemberThatHangsIsNotTakenForOneThatSpeaksTLS(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // which accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for name, opts := range map[string]*Options{"plain": {}, "TLS": {TLS: &tls.Config{InsecureSkipVerify: true}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := newNode(t.Context(), 0, silent.Addr().String(), "", opts, &union{ids: make([]uint64, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer n.close()
			err = n.try(t.Context(), 3*pace.CallTime(), n.probe)
			if _, stalled := errors.AsType[direct.Stall](err); !stalled || err.Error() != "no answer in "+pace.CallTime().String() {
				t.Errorf("stalled %v: %v", stalled, err)
			}
		})
	}
}
