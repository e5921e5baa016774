package sqlite

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/sqllock/internal/doorbell"
)

// The messages between bells. A space separates the kind from the rest.
const (
	turnMessage   = "turn"   // owner of a waiter to which a lock was handed
	forcedMessage = "forced" // owner whose lock was force-released, space, reason
)

// socket is a doorbell.Bell, or its replacement in a test.
type socket interface {
	Ring(id, message string) (dead bool)
	Close()
}

// opener creates the socket of id beside a file.
type opener func(file, id string, hear func(message string)) (socket, error)

func openSocket(file, id string, hear func(message string)) (socket, error) {
	return doorbell.Open(file, id, hear)
}

// bell sends messages to other processes that use the file.
type bell struct{ socket socket }

// Ring implements doorbell.Ringer.
func (b *bell) Ring(owner string) { b.sendMessage(owner, turnMessage+" "+owner) }

// Forced implements doorbell.Ringer.
func (b *bell) Forced(owner, why string) { b.sendMessage(owner, forcedMessage+" "+owner+" "+why) }

// sendMessage sends a message to the process of owner.
func (b *bell) sendMessage(owner, message string) {
	id, _, _ := strings.Cut(owner, ".")
	b.socket.Ring(id, message)
}

// openDoorbell opens the socket of d, so that d and other processes can ring each other.
func (d *Driver) openDoorbell(hang opener) {
	doorbell.Attach(d.Driver, func(client string, wake func(owner string)) (doorbell.Ringer, error) {
		socket, err := hang(followLink(d.path), client, func(message string) { d.handleMessage(message, wake) })
		if err != nil {
			return nil, err
		}
		d.bell = &bell{socket}
		return d.bell, nil
	})
}

// handleMessage handles a message. Any user who can write to the file may have sent it.
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

// reportDoorbell reports to a doctor whether waiters are notified of their turn.
func reportDoorbell(notes *driverkit.Findings, path string) {
	if err := doorbell.CheckSupport(followLink(path)); err != nil {
		notes.OK("wake", "waiters look every 5 to 50 ms, as there can be no socket beside the file: %v", err)
		return
	}
	notes.OK("wake", "by datagrams to a socket of each process beside the file")
}
