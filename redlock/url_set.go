package redlock

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// nextURL is what separates URLs. A blank within a password is followed by no scheme.
var nextURL = regexp.MustCompile(`\s+[a-z][a-z+-]*://`)

// split cuts a text into the URLs that it has.
func split(text string) (urls []string) {
	text = strings.TrimSpace(text)
	for at := nextURL.FindStringIndex(text); at != nil; at = nextURL.FindStringIndex(text) {
		urls, text = append(urls, text[:at[0]]), strings.TrimSpace(text[at[0]:])
	}
	return append(urls, text)
}

// readSet reads URLs of which each names a node of one set. What stands behind the ? is for the
// set, and stands in the first; a login stands in the first for all, or in each.
func readSet(urls []string, opts *Options) (nodes []Node, set Options, err error) {
	var caller Options
	if opts != nil {
		caller = *opts
	}
	bare := caller
	bare.Username, bare.Password, bare.Credentials = "", "", nil
	logins, files := 0, 0
	for i, u := range urls {
		some, o, err := parseURL(u, &bare)
		if err == nil && i == 0 {
			set = o
		}
		if err == nil {
			err = o.joins(&set, some, u, i == 0)
		}
		if err != nil {
			return nil, set, fmt.Errorf("URL %d of %d, each a node of one set: %w", i+1, len(urls), err)
		}
		if o.Username != "" || o.Password != "" || o.Credentials != nil {
			logins++
		}
		if o.Credentials != nil {
			files++
		}
		some[0].Username, some[0].Password = o.Username, o.Password
		nodes = append(nodes, some[0])
	}
	first := set.Username != "" || set.Password != "" || set.Credentials != nil
	switch {
	case logins == 0:
		set.Username, set.Password, set.Credentials = caller.Username, caller.Password, caller.Credentials
	case logins == 1 && first:
		nodes[0].Username, nodes[0].Password = "", ""
	case logins < len(urls) || files > 0:
		return nil, set, fmt.Errorf("%w: some of the URLs have a user or password and others have not, or a passwordfile beside them; "+
			"give them in the first URL, for all nodes, or in each, without passwordfile", driver.ErrInvalid)
	default:
		set.Username, set.Password, set.Credentials = "", "", nil
	}
	return nodes, set, nil
}

// ofNode are the parameters that a node has for itself.
var ofNode = []string{"username", "password", "sentinel_username", "sentinel_password"}

// joins refuses what keeps the nodes of one URL out of a set.
func (o *Options) joins(set *Options, nodes []Node, rawURL string, first bool) error {
	_, query, _ := strings.Cut(rawURL, "?")
	given, err := parameters(query)
	if err != nil {
		return err
	}
	for name := range given {
		if !first && !slices.Contains(ofNode, name) {
			return fmt.Errorf("%w: parameter %s is for all nodes: give it in the first URL alone", driver.ErrInvalid, name)
		}
	}
	switch {
	case o.Cluster:
		return fmt.Errorf("%w: a Redis Cluster is no node of a set; give its URL alone", driver.ErrInvalid)
	case len(nodes) != 1:
		return fmt.Errorf("%w: it names %d nodes; give redis:// (rediss:// for TLS) for each of them", driver.ErrInvalid, len(nodes))
	case (o.TLS == nil) != (set.TLS == nil):
		return fmt.Errorf("%w: some URLs are with TLS and others without; begin all with rediss (rediss://, rediss+sentinel://, rediss+replicas://), or none",
			driver.ErrInvalid)
	case o.DB != set.DB:
		return fmt.Errorf("%w: it has database %d and the first URL %d; give all nodes the same", driver.ErrInvalid, o.DB, set.DB)
	}
	return nil
}
