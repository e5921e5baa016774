package redis_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

func TestServerThatInterleavesScriptsIsRejected(t *testing.T) {
	t.Parallel()
	for answer, words := range map[string][]string{
		"$11\r\nINTERLEAVED\r\n":                           {"not atomic", "two clients", "give Redis or Valkey"},
		"-ERR value is not an integer or out of range\r\n": {"lost what a script wrote", "give Redis or Valkey"}, // GET finds nothing
	} {
		fake := &hostileServer{step: []byte(answer), turn: 1 << 20}
		d, err := redis.New(t.Context(), []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: fake.dial, Timeout: busyTimeout()})
		if err == nil {
			d.Close()
		}
		if checkMentions(t, err, words...); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%v, want an ErrConfig", err)
		}
	}
}

// The check leaves no keys behind.
func TestScriptsAreCheckedOnceForEachRun(t *testing.T) {
	r := startRig(t, 1)
	r.do(0, "CONFIG", "SET", "slowlog-log-slower-than", "0")
	r.do(0, "CONFIG", "SET", "slowlog-max-len", "100000")
	tries := func() (n int) {
		for _, entry := range r.do(0, "SLOWLOG", "GET", "-1").([]any) {
			if words := entry.([]any)[3].([]any); len(words) > 1 && words[0] == "EVALSHA" && words[1] == wire.Step.SHA {
				n++
			}
		}
		return n
	}
	var conns connections
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{Dial: conns.dial}), nil)
	if n := tries(); n != 1 {
		t.Errorf("%d attempts on the first connection", n)
	}
	before := conns.count()
	conns.closeAll()
	r.eventually("the client is connected again", func() bool {
		l, err := c.TryAcquire(r.Context(), "k", nil)
		if err == nil {
			r.release(l)
		}
		return err == nil && conns.count() > before
	})
	if n := tries(); n != 1 {
		t.Errorf("%d attempts after a second connection to the same run", n)
	}
	for _, key := range r.keys() {
		if strings.Contains(key, "probe") {
			t.Errorf("%s was not deleted", key)
		}
	}
}
