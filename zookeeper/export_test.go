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

// Spent is the first number that nobody has a lock by.
const Spent = spent

// Over returns opts for connections of the test's own.
func Over(opts Options, dial func(ctx context.Context, addr string) (net.Conn, error)) *Options {
	opts.dial = dial
	return &opts
}

// SetMaxUsers sets how many users a session has at most, before the first.
func (d *Driver) SetMaxUsers(n int) { d.maxUsers = n }

// Room sets for how many claims and releases at once there is room, before the first.
func (d *Driver) Room(n int) { d.lane = driverkit.NewLane(d.states, n) }

// ReadPacket returns the length of a packet that may have so many bytes.
func ReadPacket(from io.Reader, room int) (int, error) {
	p, err := readPacket(from, func() int { return room })
	return len(p), err
}

// Put creates a node with a value, and what is above it.
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

// Delete deletes the node of an owner, as people do by hand.
func (d *Driver) Delete(ctx context.Context, key, owner string) error {
	l, err := d.lookUp(ctx, key)
	i := placeOf(owner, l.entries)
	if err != nil || i < 0 {
		return errors.Join(err, driverkit.ErrAgain)
	}
	s := d.sessionFor(lookTTL)
	defer d.releaseSession(s)
	return s.removeOnce(ctx, d.folderOf(key)+"/"+l.entries[i].name)
}

// Expire has the servers end the session for locks with this TTL, as they do when they have
// not heard of it for too long.
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
	// A session belongs to the connection that opened or resumed it last. bid resumes it, so the driver loses its own
	// connection, and may resume the session at another member before the close request counts, which is ignored then.
	for ctx.Err() == nil {
		over, err := l.member.bid(ctx, s, hello)
		if over {
			return err
		}
	}
	return ctx.Err()
}

// bid goes on with the session that hello names and ends it, unless it is over.
func (m *member) bid(ctx context.Context, s *session, hello greeting) (over bool, err error) {
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
