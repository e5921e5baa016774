package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// SequenceLimit is the first sequence number that grants no lock.
const SequenceLimit = sequenceLimit

// WithDial returns opts with the test's own way to dial.
func WithDial(opts Options, dial func(ctx context.Context, addr string) (net.Conn, error)) *Options {
	opts.dial = dial
	return &opts
}

// SetMaxUsers sets the maximal number of users of a session. Call it before the first use.
func (d *Driver) SetMaxUsers(n int) { d.maxUsers = n }

// SetLaneRoom sets the number of concurrent claims and releases. Call it before the first use.
func (d *Driver) SetLaneRoom(n int) { d.lane = driverkit.NewLane(d.states, n) }

// ReadPacket returns the length of a packet of at most room bytes.
func ReadPacket(from io.Reader, room int) (int, error) {
	p, err := readPacket(from, func() int { return room })
	return len(p), err
}

// Put creates a node with a value, and its parents.
func (d *Driver) Put(ctx context.Context, at, value string) error {
	s := d.sessionFor(lookTTL)
	defer d.releaseSession(s)
	var all []*request
	for i := range at {
		if i > 0 && at[i] == '/' {
			all = append(all, persistentRequest(at[:i], everybody))
		}
	}
	last := &request{op: opPersistent, write: creationBody(at, value, everybody, 0)}
	return errors.Join(s.sendAll(ctx, append(all, last)...), last.err)
}

// Delete deletes the node of an owner, as an operator might.
func (d *Driver) Delete(ctx context.Context, key, owner string) error {
	l, err := d.lookUp(ctx, key)
	i := placeOf(owner, l.entries)
	if err != nil || i < 0 {
		return errors.Join(err, driverkit.ErrRetryNow)
	}
	s := d.sessionFor(lookTTL)
	defer d.releaseSession(s)
	return s.removeOnce(ctx, d.folderOf(key)+"/"+l.entries[i].name)
}

// Expire makes the servers end the session for locks with this TTL, as they do after its timeout.
func (d *Driver) Expire(ctx context.Context, ttl time.Duration) error {
	s := d.sessionFor(ttl)
	defer d.releaseSession(s)
	l, err := s.awaitLink(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	hello := greeting{0, int32(ttl / time.Millisecond), s.id, s.password}
	s.mu.Unlock()
	// A session belongs to the connection that opened or resumed it last. bid resumes it, so the driver loses
	// its connection. The driver may resume the session at another member before the close request arrives,
	// which is then ignored.
	for ctx.Err() == nil {
		done, err := l.member.resumeAndClose(ctx, s, hello)
		if done {
			return err
		}
	}
	return ctx.Err()
}

// resumeAndClose resumes the session of hello and closes it. done reports that the session has ended, or that
// the dial failed.
func (m *member) resumeAndClose(ctx context.Context, s *session, hello greeting) (done bool, err error) {
	conn, err := m.dial(ctx)
	if err != nil {
		return true, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	l := &link{s: s, member: m, conn: conn, in: bufio.NewReader(conn)}
	reply, err := l.exchangePacket(hello.packet())
	if err != nil {
		return false, nil
	}
	g, err := readWelcome(reply)
	if err == nil && g.id != 0 {
		l.askOnce(goodbyeRequest())
		return false, nil
	}
	return true, err
}
