package zookeeper_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// The connections with the old certificates end, the next connection uses the new ones, and the lease survives.
func TestNextConnectionUsesReplacedCertificates(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		cert, _ := r.useTLS(dir, 10*time.Minute)
		url := fmt.Sprintf("zks://%s%s?ca=%s&cert=%s&key=%s", strings.Join(r.addrs, ","), r.opts.Path, cert.Cert, cert.Cert, cert.Key)
		d, err := zookeeper.Open(r.WaitContext(), url, &r.opts)
		d = fixture.CloseAtEnd(r.Rig, d, err)
		l := r.Acquire(r.Client(d), "k", longTTL)
		for range 3 {
			time.Sleep(8 * time.Minute) // each certificate is valid for ten minutes
			r.useTLS(dir, 10*time.Minute)
			r.fake.cutConnections()
			r.AwaitRenewals(l, 2)
			r.NoError(context.Cause(l.Context()))
		}
		r.NoError(os.WriteFile(cert.Key, []byte("none"), 0o600))
		r.fake.cutConnections()
		if _, err := d.Inspect(r.WaitContext(), "k"); err == nil || !strings.Contains(err.Error(), cert.Key) {
			t.Errorf("Inspect() = %v, want the file that has no key", err)
		}
		r.useTLS(dir, 10*time.Minute)
		r.AwaitRenewals(l, 1)
		r.NoError(context.Cause(l.Context()))
	})
}
