package sqlite

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/sqllock/internal/doorbell"
)

// The messages that bells send, each before a blank and what it is about.
const (
	turnMessage   = "turn"   // owner: a lock was handed to it
	forcedMessage = "forced" // owner and, behind another blank, why: its lock was taken away
)

// socket is a doorbell.Bell, or what a test has in its place.
type socket interface {
	Ring(id, message string) (dead bool)
	Close()
}

// opener makes the socket of id beside a file.
type opener func(file, id string, hear func(message string)) (socket, error)

func openSocket(file, id string, hear func(message string)) (socket, error) {
	return doorbell.Open(file, id, hear)
}

// bell reaches the other processes that lock in the file.
type bell struct{ socket socket }

// Ring implements doorbell.Ringer.
func (b *bell) Ring(owner string) { b.sendMessage(owner, turnMessage+" "+owner) }

// Forced implements doorbell.Ringer.
func (b *bell) Forced(owner, why string) { b.sendMessage(owner, forcedMessage+" "+owner+" "+why) }

// sendMessage sends a message to the process whose owner it is about.
func (b *bell) sendMessage(owner, message string) {
	id, _, _ := strings.Cut(owner, ".")
	b.socket.Ring(id, message)
}

// hangBell has other processes reach d, and d reach them.
func (d *Driver) hangBell(hang opener) {
	doorbell.Attach(d.Driver, func(client string, wake func(owner string)) (doorbell.Ringer, error) {
		socket, err := hang(followLink(d.path), client, func(message string) { d.handleMessage(message, wake) })
		if err != nil {
			return nil, err
		}
		d.bell = &bell{socket}
		return d.bell, nil
	})
}

// handleMessage acts on a message, which may be from anybody who can write to the file.
func (d *Driver) handleMessage(message string, wake func(owner string)) {
	kind, rest, _ := strings.Cut(message, " ")
	switch kind {
	case turnMessage:
		wake(rest)
	case forcedMessage:
		if alert := d.alert.Load(); alert != nil {
			owner, why, _ := strings.Cut(rest, " ")
			(*alert)(owner, why)
		}
	}
}

// tellBell tells a doctor how waiters of the file learn of their turn.
func tellBell(notes *driverkit.Notes, path string) {
	if err := doorbell.Check(followLink(path)); err != nil {
		notes.OK("wake", "waiters look every 5 to 50 ms, as there can be no socket beside the file: %v", err)
		return
	}
	notes.OK("wake", "by datagrams to a socket of each process beside the file")
}
