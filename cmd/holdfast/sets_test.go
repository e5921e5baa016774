//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sharding"
)

// newProgram returns a client of a program with sets of its own, by the addresses of their servers.
func (b *bench) newProgram(sets map[string]string) (*holdfast.Client, *sharding.Driver) {
	b.t.Helper()
	var all []sharding.Set
	for name, addr := range sets {
		d, err := redis.New(b.t.Context(), []redis.Node{{Addr: addr}}, &redis.Options{Timeout: pace.Scale(5 * time.Second)})
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, sharding.Set{Name: name, Driver: d})
	}
	d, err := sharding.New(all, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := holdfast.New(d, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c, d
}

// checkPrints runs holdfast and checks its exit code and output.
func (b *bench) checkPrints(code int, text string, args ...string) {
	b.t.Helper()
	j := b.start(args...)
	if got := j.code(); got != code || !strings.Contains(j.out.String()+j.log.String(), text) {
		b.t.Errorf("holdfast %q: exit code %d, want %d and %q:\n%s%s", args, got, code, text, j.out.String(), j.log.String())
	}
}

// nameIn returns a name whose home is this set.
func nameIn(d *sharding.Driver, home string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint("job-", i); d.Home(name) == home {
			return name
		}
	}
}

func TestCommandFindsShardOfName(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	first, second := b.servers[0].Addr(), b.servers[1].Addr()
	b.backend = fmt.Sprintf("a=redis://%[1]s?timeout=%[3]v b=redis://%[2]s?timeout=%[3]v", first, second, pace.Scale(5*time.Second))
	client, d := b.newProgram(map[string]string{"a": first, "b": second})
	for i, home := range []string{"a", "b"} {
		name := nameIn(d, home)
		acquire := func() *holdfast.Lease {
			t.Helper()
			l, err := client.Acquire(t.Context(), name, nil)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		lease := acquire()
		if n, err := b.servers[i].Do("EXISTS", "lock:"+name); n != int64(1) {
			t.Errorf("%s is not in set %s: %v, %v", name, home, n, err)
		}
		b.checkPrints(0, "held", "show", name)
		b.checkPrints(0, name, "ls")
		b.checkPrints(75, "is held", "run", "-n", name, "--", "true")
		waiter := b.start("run", name, "--", "true")
		eventually(t.Fatalf, "the command waits", func() bool {
			st, err := client.Inspect(t.Context(), name)
			return err == nil && st.Waiters == 1
		})
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if code := waiter.code(); code != 0 {
			t.Errorf("the waiting command: exit code %d:\n%s", code, waiter.log.String())
		}
		lease = acquire()
		b.checkPrints(0, "", "force-release", name, "--token", fmt.Sprint(lease.Token()), "--reason", "test", "--yes")
		<-lease.Context().Done()
	}
	for set, addr := range map[string]string{"a": first, "b": second} { // as JSON: the table merges rows if both sets are alike
		b.checkPrints(0, fmt.Sprintf(`"node": "%s/%s"`, set, addr), "doctor", "-o", "json", "--ignore", "persistence,tls,rights,memory")
	}

	b.servers[1].Kill() // only its names become unavailable
	b.checkPrints(0, "", "run", "-n", nameIn(d, "a"), "--", "true")
	b.checkPrints(69, "set b", "run", "-n", nameIn(d, "b"), "--", "true")
	b.checkPrints(1, "b/"+second, "doctor")
}

func TestMalformedSetsAreRejected(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	one := b.servers[0].Addr()
	for _, refused := range []struct{ backend, mend, command string }{
		{"redis://" + one + " b=redis://" + one, "some URLs of the backend have a name", "ls"},
		{"a=redis://" + one + " redis://" + one, "some URLs of the backend have a name", "ls"},
		{"=redis://" + one, "some URLs of the backend have a name", "ls"},
		{"a=redis://" + one + " a=redis://" + one, "is listed twice", "ls"},
		{"a=redis://" + one + " +b=redis://" + one, `name of a set "+b"`, "ls"},
		{"a=zk://u:hunter2@h a=zk://i", "all hosts of the service in one URL", "ls"},
		{"a=redis://" + one + "?nonsense=1 b=redis://" + one, "set a: ", "ls"},
		{"redis://" + one + "?maxtll=9s", "the nearest that is known is maxttl", "ls"},
		{one, "the backend is not a URL; write what it is before the host", "ls"},
		{"a=redis://" + one + " b=redis://" + one, "one set at a time", "leaks"},
		{"a=postgres://h/d b=postgres://i/d", "one set at a time", "migrate"},
	} {
		b.backend = refused.backend
		b.checkPrints(64, refused.mend, refused.command)
	}
	b.backend = "a=redis://" + one + " b=redlock://h,i,j?maxttl=20s" // bounds the TTL, also of names in the other set
	b.checkPrints(64, "20s at most", "acquire", "k", "--ttl", "30s")
}
