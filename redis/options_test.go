package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// FuzzOptions checks that options and addresses are either rejected with driver.ErrInvalid, or give a driver
// whose lock keys are distinct from Holdfast's own keys.
func FuzzOptions(f *testing.F) {
	f.Add("a:1", "", int64(0), int64(0), 0, false)
	f.Add("a:1,a:1", "lock:", int64(time.Minute), int64(time.Second), 1, false)
	f.Add("a:1,,b:2", "holdfast:", int64(-1), int64(-1), -1, true)
	f.Add("1,2,3,4,5,6,7,8,9,10", "{x}", int64(9*time.Millisecond), int64(1), 15, false)
	f.Fuzz(func(t *testing.T, addrs, prefix string, maxTTL, timeout int64, db int, bare bool) {
		var nodes []Node
		for addr := range strings.SplitSeq(addrs, ",") {
			nodes = append(nodes, Node{Addr: addr})
		}
		d, err := prepareDriver(nodes, &Options{
			Prefix: prefix, MaxTTL: time.Duration(maxTTL), Timeout: time.Duration(timeout), DB: db, BareKeys: bare,
		})
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%v, want driver.ErrInvalid", err)
			}
			return
		}
		defer d.stop()
		o := &d.opts
		if o.MaxTTL < 10*time.Millisecond || o.Timeout <= 0 || o.DB < 0 || len(d.nodes) != len(nodes) {
			t.Errorf("taken: %+v, %d nodes", o, len(d.nodes))
		}
		if key := o.lockKeys("k").Key; strings.HasPrefix(key, wire.Companion) {
			t.Errorf("prefix %q, bare %v: the key of a lock is %q", prefix, bare, key)
		}
	})
}
