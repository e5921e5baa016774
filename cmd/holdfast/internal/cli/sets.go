package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/sharding"
)

// A backend may be several sets, over which package sharding spreads the names: NAME=URL. A URL
// without a name is one more node of the set before it. A sign before a name is refused.

// beginning is where a URL of a backend begins.
var beginning = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|\s+)(?:([+-]?)([A-Za-z0-9._-]+)=)?([a-z][a-z+-]*)://`)
})

// part is one set of a backend, or a backend that has no names.
type part struct {
	name, url string
}

// parts are the sets of a backend. One without names is one part, also if it cannot be read.
func parts(backend string) (all []part, err error) {
	at := beginning().FindAllStringSubmatchIndex(backend, -1)
	for i, m := range at {
		end := len(backend)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		url := strings.TrimSpace(backend[m[6]:end])
		switch {
		case m[4] >= 0:
			if sign := backend[m[2]:m[3]]; sign != "" {
				return nil, exitcode.Usagef("set %s%s: all clients have one list of sets, without signs; to change it, stop them all, wait, "+
					"and start them with the new list (docs/operations.md, Several sets)", sign, backend[m[4]:m[5]])
			}
			all = append(all, part{backend[m[4]:m[5]], url})
		case len(all) > 0:
			all[len(all)-1].url += " " + url
		default:
			all = append(all, part{url: url})
		}
	}
	switch {
	case len(all) == 0 || strings.TrimSpace(backend[:at[0][0]]) != "":
		return []part{{url: backend}}, nil
	case len(all) > 1 && all[0].name == "": // those without a name are one part
		return nil, exitcode.Usagef("some sets of the backend have a name and the first has not; give each one, as in a=redis://h1:6379 b=redis://h2:6379")
	}
	return all, nil
}

// sole is the URL of a backend of one set.
func (a *app) sole(command string) (string, error) {
	all, err := parts(a.backend)
	if err == nil && all[0].name != "" {
		err = exitcode.Usagef("%s is for one set at a time; give the URL of each by --backend, without its name", command)
	}
	if err != nil {
		return "", err
	}
	return all[0].url, nil
}

// openURL opens the backend at text: one URL, or several sets. opts are for Redis.
func openURL(ctx context.Context, text string, opts *redlock.Options) (driver.Driver, error) {
	all, err := parts(text)
	if err != nil {
		return nil, err
	}
	if all[0].name == "" {
		return openOne(ctx, all[0].url, opts)
	}
	down := *opts
	down.AllowDown = true // a set that is down takes its names with it, and no others
	sets, errs := make([]sharding.Set, len(all)), make([]error, len(all))
	forEach(all, func(i int, p part) {
		sets[i] = sharding.Set{Name: p.name}
		if sets[i].Driver, errs[i] = openOne(ctx, p.url, &down); errs[i] != nil {
			errs[i] = fmt.Errorf("set %s: %w", p.name, errs[i])
		}
	})
	err = errors.Join(errs...)
	if err == nil {
		var d *sharding.Driver
		if d, err = sharding.New(sets, nil); err == nil {
			return d, nil
		}
	}
	for i, s := range sets {
		if errs[i] == nil {
			s.Driver.Close()
		}
	}
	return nil, err
}

func forEach(all []part, do func(i int, p part)) {
	var working sync.WaitGroup
	for i, p := range all {
		working.Go(func() { do(i, p) })
	}
	working.Wait()
}

// diagnoseURL looks for what is wrong with the backend at text, also where it cannot be opened.
func diagnoseURL(ctx context.Context, text string, ttl time.Duration) ([]driver.Finding, error) {
	all, err := parts(text)
	switch {
	case err != nil:
		return nil, err
	case all[0].name == "":
		return diagnoseOne(ctx, all[0].url, ttl)
	}
	if drv, err := openURL(ctx, text, &redlock.Options{ClientName: "holdfast", ReadOnly: true}); err == nil {
		defer drv.Close()
		return drv.(*sharding.Driver).Diagnose(ctx, ttl), nil
	}
	found, errs := make([][]driver.Finding, len(all)), make([]error, len(all))
	forEach(all, func(i int, p part) {
		found[i], errs[i] = diagnoseOne(ctx, p.url, ttl)
		for j, f := range found[i] {
			found[i][j].Node = strings.TrimSuffix(p.name+"/"+f.Node, "/")
		}
	})
	return slices.Concat(found...), errors.Join(errs...)
}

// masked is a backend without what is a password, or may be a part of one.
func masked(backend string) string {
	at := beginning().FindAllStringSubmatchIndex(backend, -1)
	if len(at) == 0 || strings.TrimSpace(backend[:at[0][0]]) != "" {
		return maskedURL(backend)
	}
	var text strings.Builder
	for i, m := range at {
		end := len(backend)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		url := backend[m[6]:end]
		if !strings.Contains(url, "@") && strings.Contains(backend[end:], "@") {
			return maskedURL(backend) // what looks like the next URL may be a part of a password
		}
		text.WriteString(backend[m[0]:m[6]] + maskedURL(url))
	}
	return text.String()
}
