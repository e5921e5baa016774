package redis

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func TestBadFailoverIsRejectedBeforeDialing(t *testing.T) {
	t.Parallel()
	for mend, node := range map[string]Node{
		"neither Sentinels nor Servers": {Failover: &Failover{}},
		"Sentinels and Servers":         {Failover: &Failover{Sentinels: []string{"a:1"}, Master: "m", Servers: []string{"b:1"}}},
		"name of the master":            {Failover: &Failover{Sentinels: []string{"a:1"}}},
		"has more than letters":         {Failover: &Failover{Sentinels: []string{"a:1"}, Master: "a b"}},
		"listed twice":                  {Failover: &Failover{Servers: []string{"a:1", "a:1"}}},
		"address 2 of 2":                {Failover: &Failover{Servers: []string{"a:1", "b"}}},
		"Addr and Failover":             {Addr: "a:1", Failover: &Failover{Servers: []string{"b:1"}}},
	} {
		if _, err := New(context.Background(), []Node{node}, nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), mend) {
			t.Errorf("%v, want ErrInvalid with %q", err, mend)
		}
	}
}

func TestFailoverURLsAreParsed(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct {
		f    *Failover
		opts Options
		mend string
	}{
		"redis+sentinel://s1/m": {f: &Failover{Sentinels: []string{"s1:26379"}, Master: "m"}},
		"redis+sentinel://u:p%40@s1,s2:1,[::1]/m/": {
			f: &Failover{Sentinels: []string{"s1:26379", "s2:1", "[::1]:26379"}, Master: "m"}, opts: Options{Username: "u", Password: "p@"},
		},
		"valkey+sentinel://s/my%20/3": {mend: "has more than letters"},
		"valkey+sentinel://s/m/3":     {f: &Failover{Sentinels: []string{"s:26379"}, Master: "m"}, opts: Options{DB: 3}},
		"redis+sentinel://:p@s/m?sentinel_username=v&sentinel_password=w": {
			f: &Failover{Sentinels: []string{"s:26379"}, Master: "m", Username: "v", Password: "w"}, opts: Options{Password: "p"},
		},
		"redis+replicas://u:p@a,b:1/2": {f: &Failover{Servers: []string{"a:6379", "b:1"}}, opts: Options{Username: "u", Password: "p", DB: 2}},

		"redis+sentinel://s1,s2":                     {mend: "name of the master"},
		"redis+sentinel://s1,s2/":                    {mend: "name of the master"},
		"redis+sentinel:///m":                        {mend: "host 1 of 1 is missing"},
		"redis+sentinel://s1,/m":                     {mend: "host 2 of 2 is missing"},
		"redis+sentinel://u:p@s1,v:q@s2/m":           {mend: "once, before the first host"},
		"redis+sentinel://s1/m/x":                    {mend: "not a database number"},
		"redis+sentinel://s1/%zz":                    {mend: "write % as %25"},
		"redis+sentinel+replicas://s1/m":             {mend: "does not begin with"},
		"redis+replicas+sentinel://s1/m":             {mend: "does not begin with"},
		"foo+replicas://s1":                          {mend: "does not begin with"},
		"redis://h?sentinel_password=p":              {mend: "names none"},
		"redis+replicas://h?sentinel_username=u":     {mend: "names none"},
		"redis+sentinel://u:p@s/m?username=v":        {mend: "leave out one of them"},
		"redis+sentinel://s/m?sentinel_password=p@q": {f: &Failover{Sentinels: []string{"s:26379"}, Master: "m", Password: "p@q"}},
	} {
		nodes, opts, err := parseURL(url, nil)
		if want.mend != "" {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want.mend) {
				t.Errorf("%s: %v, want driver.ErrInvalid with %q", url, err, want.mend)
			}
			continue
		}
		if err != nil || len(nodes) != 1 || !reflect.DeepEqual(nodes[0], Node{Failover: want.f}) || !reflect.DeepEqual(opts, want.opts) {
			t.Errorf("%s: %+v, %+v, %v, want %+v, %+v", url, nodes, opts, err, want.f, want.opts)
		}
	}
	if _, opts, err := parseURL("rediss+sentinel://s/m", nil); err != nil || opts.TLS == nil {
		t.Errorf("rediss+sentinel: %v, %v", opts.TLS, err)
	}
	for url, want := range map[string]time.Duration{"redis+sentinel://s/m": time.Minute, "redis+replicas://a": time.Minute, "redis://a": 24 * time.Hour} {
		if l, err := limitsOf(url); err != nil || l.MaxTTL != want {
			t.Errorf("%s: MaxTTL %v, %v, want %v", url, l.MaxTTL, err, want)
		}
	}
}
