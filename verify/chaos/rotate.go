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

// rotation replaces what a service wants of its clients, a password or a certificate, and then again. Each time the clients learn of
// it By later, when the connections that they have are cut; so a lease that lives on those outlasts the gap.
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

// gap is for how long clients do not know in the schedules what a service wants of them: without a connection, nobody is granted a lock.
const gap = 5 * time.Second

// passwords are the new passwords of two rotations, the second of which brings back the first one.
var passwords = [2]string{"second", firstPassword}

// replaceFile writes a file such that whoever reads it has the old text or the new one.
func replaceFile(name, text string) error {
	return errors.Join(os.WriteFile(name+".new", []byte(text), 0o600), os.Rename(name+".new", name))
}

// firstSecret writes a file with the first password into a folder of its own.
func firstSecret() (file string, err error) {
	dir, err := os.MkdirTemp("", "holdfast-chaos-")
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "secret")
	return file, replaceFile(file, firstPassword)
}

// rotatePassword has servers of Redis that share the file of a password rotate it.
func rotatePassword(f Fault, servers []*redisproc.Server, nodes []*node, file string, rest func(time.Duration)) error {
	for _, n := range nodes { // or a server might come back with the first one
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

// rotateGap changes a node's password, of which the clients learn By later. Connections that have logged in stay.
func (s *redisSite) rotateGap(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	return rotatePassword(f, []*redisproc.Server{v.redis}, []*node{&v.node}, v.secret, rest)
}

// passwordOf returns the file with the password of a node, which may be one for all.
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
