package redis

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

func TestSeveralURLsFormSet(t *testing.T) {
	t.Parallel()
	one, two := &Failover{Sentinels: []string{"s1:26379", "s2:26379"}, Master: "one"}, &Failover{Servers: []string{"a:6379", "b:1"}}
	secret := *one
	secret.Username, secret.Password = "v", "w"
	for text, want := range map[string]struct {
		nodes []Node
		opts  Options
		mend  string
	}{
		"redis+sentinel://s1,s2/one  redis+replicas://a,b:1\nvalkey://h": {nodes: []Node{{Failover: one}, {Failover: two}, {Addr: "h:6379"}}},
		" unix:///run/redis.sock redis://h ":                             {nodes: []Node{{Addr: "/run/redis.sock"}, {Addr: "h:6379"}}},
		"redis://u:my%20pass@h/2?maxttl=9s&prefix=p redis://i/2": {
			nodes: []Node{{Addr: "h:6379"}, {Addr: "i:6379"}}, opts: Options{Username: "u", Password: "my pass", DB: 2, MaxTTL: 9 * time.Second, Prefix: "p"},
		},
		"redis://u:my%20pass@h redis://:q@i?username=v": {
			nodes: []Node{{Addr: "h:6379", Username: "u", Password: "my pass"}, {Addr: "i:6379", Username: "v", Password: "q"}},
		},
		"redis://h redlock://i,j": {nodes: []Node{{Addr: "h:6379"}, {Addr: "i:6379"}, {Addr: "j:6379"}}},
		"redis://h/2 unix:///s":   {nodes: []Node{{Addr: "h:6379"}, {Addr: "/s"}}, opts: Options{DB: 2}},
		"redis://h redis+sentinel://s1,s2/one?sentinel_username=v&sentinel_password=w": {nodes: []Node{{Addr: "h:6379"}, {Failover: &secret}}},

		"redis://u:hunter2@h redis://i redis://v:p@j":         {mend: "in the first URL, for all nodes, or in each"},
		"redis://h redis://u:hunter2@i":                       {mend: "in the first URL, for all nodes, or in each"},
		"redis://h?passwordfile=/dev/null redis://:hunter2@i": {mend: "without passwordfile"},
		"redis://h redis://i?prefix=hunter2":                  {mend: "URL 2 of 2 of one set"},
		"redis://h redis://i?maxttl=9s":                       {mend: "give it in the first URL alone"},
		"redis://h rediss://i":                                {mend: "begin all with rediss"},
		"redis://h/1 redis://i":                               {mend: "database 0 and the first URL 1"},
		"redis://h redis+cluster://i":                         {mend: "cannot be a node of a set"},
		"redis://u:my hunter2@h redis://i":                    {mend: "URL 1 of 3"},
		"redis://h redis://u:hunter2/x@i":                     {mend: "write / as %2F"},
		"redis://h postgres://u:hunter2@i":                    {mend: "does not begin with "},
	} {
		nodes, opts, err := parseURL(text, nil)
		if want.mend != "" {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want.mend) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v, want driver.ErrInvalid with %q", text, err, want.mend)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(nodes, want.nodes) || !reflect.DeepEqual(opts, want.opts) {
			t.Errorf("%s: %+v, %+v, %v, want %+v, %+v", text, nodes, opts, err, want.nodes, want.opts)
		}
	}
	if _, opts, err := parseURL("redis://h redis://i", &Options{Username: "u", Password: "p"}); err != nil || opts.Username != "u" || opts.Password != "p" {
		t.Errorf("the caller's login was dropped: %+v, %v", opts, err)
	}
	if l, err := limitsOf("redis://a redis://b redis://c"); err != nil || l.MaxTTL != time.Minute {
		t.Errorf("MaxTTL %v, %v, want the set's MaxTTL", l.MaxTTL, err)
	}
}

// The function that hides passwords must know the parameters of this package: it hides the value of an unknown
// parameter as if it were a password.
func TestHarmlessParametersAreShown(t *testing.T) {
	t.Parallel()
	for _, name := range grammar.Parameters {
		text := "redis://h?" + name + "=x"
		if got := driverkit.Mask(text); (got == text) == strings.HasSuffix(name, "password") {
			t.Errorf("%s is masked as %s", text, got)
		}
	}
}
