// Package doorbell wakes other processes of one machine that wait for a lock in a file. Each process has a Unix
// datagram socket beside the file, whose name ends in an id that the process writes into its tickets. Whoever
// hands a lock over sends a datagram there.
//
// A ring is a hint. It may be lost, doubled or false, so each waiter must also read the file now and then. So
// Ring never blocks, has no error, and nothing depends on it but time.
//
// # Who may do what
//
// The folder of the file may be writable for other users, who then may put anything there, and ids come from
// tickets, which whoever may write to the file may make up. So
//
//   - an id is 26 letters and digits, and leads to no other folder;
//   - a ring goes to a socket alone, and never through a symbolic link, so that nobody has this process write to the
//     socket of a system service;
//   - the socket has to belong to this user, to the user of the file, or to the group of the file if that may write to
//     the file; nothing else is rung, and nothing else is removed;
//   - what comes in is text of others, and at most MaxMessage bytes of it are read;
//   - the socket has the mode of the file, so that who may not write to the file may not ring, as far as umask leaves it.
//
// The sockets of processes that were killed stay. Ring removes the one that it finds dead, and Open some of the
// others.
package doorbell

import "errors"

// MaxMessage bounds a message in bytes. Longer messages are truncated.
const MaxMessage = 1024

// infix separates the name of the file from an id.
const infix = "-holdfast-"

// idLen is the length of an id from crypto/rand.Text.
const idLen = 26

// ErrUnsupported is returned by Open on systems other than Linux.
var ErrUnsupported = errors.New("only Linux has what a bell needs")

// validID reports whether id may be part of a socket's name.
func validID(id string) bool {
	if len(id) != idLen {
		return false
	}
	for _, c := range []byte(id) {
		if !('A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9') {
			return false
		}
	}
	return true
}
