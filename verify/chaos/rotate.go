//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// rotation replaces a password or a certificate that a service requires of its clients, twice. Each time the
// clients learn of it By later, when their connections are cut; so a lease that lives on those connections
// outlasts the gap.
type rotation struct {
	change func(turn int) error // on the servers
	tell   func(turn int) error // to the clients
	nodes  []*node
}

func (r rotation) run(f Fault, rest func(time.Duration)) (errs error) {
	for turn := range 2 {
		errs = errors.Join(errs, r.change(turn))
		rest(time.Duration(f.By))
		errs = errors.Join(errs, r.tell(turn))
		for _, n := range r.nodes {
			for _, p := range n.proxies {
				p.Cut()
			}
		}
		rest(time.Duration(f.For/2 - f.By))
	}
	return errs
}

// rotationPause is the time in the schedules for which clients do not know the new password or certificate: without a
// connection, nobody gets a lock.
const rotationPause = 5 * time.Second

// passwords are the new passwords of two rotations; the second restores the first password.
var passwords = [2]string{"second", firstPassword}

// replaceFile replaces a file in one step: a reader sees the old text or the new one.
func replaceFile(name, text string) error {
	return errors.Join(os.WriteFile(name+".new", []byte(text), 0o600), os.Rename(name+".new", name))
}

// firstSecret writes a file with the first password into a new folder.
func firstSecret() (file string, err error) {
	dir, err := os.MkdirTemp("", "holdfast-chaos-")
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "secret")
	return file, replaceFile(file, firstPassword)
}

// rotatePassword rotates the password of Redis servers that share a password file.
func rotatePassword(f Fault, servers []*redisproc.Server, nodes []*node, file string, rest func(time.Duration)) error {
	for _, n := range nodes { // a server must not restart with the first one
		n.life.Lock()
		defer n.life.Unlock()
	}
	return rotation{nodes: nodes, change: func(turn int) (errs error) {
		for _, s := range servers {
			_, err := s.Do("ACL", "SETUSER", user, "resetpass", ">"+passwords[turn])
			errs = errors.Join(errs, err)
		}
		return errs
	}, tell: func(turn int) error { return replaceFile(file, passwords[turn]) }}.run(f, rest)
}

// rotateGap changes a node's password. The clients learn of it By later. Connections that have logged in stay.
func (s *redisSite) rotateGap(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	return rotatePassword(f, []*redisproc.Server{v.redis}, []*node{&v.node}, v.secret, rest)
}

// passwordOf returns the password file of a node; all nodes may share one.
func (o *order) passwordOf(addr string) (file string, ok bool) {
	i := slices.Index(o.Nodes, addr)
	if len(o.Passwords) == 1 {
		i = 0
	}
	if i < 0 {
		return "", false
	}
	return o.Passwords[i], true
}
