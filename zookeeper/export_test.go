package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/direct"
)

// Delete deletes the node of an owner, as people do by hand.
func (d *Driver) Delete(ctx context.Context, key, owner string) error {
	l, err := d.lookUp(ctx, key)
	i := of(owner, l.entries)
	if err != nil || i < 0 {
		return errors.Join(err, direct.ErrAgain)
	}
	s := d.session(lookTTL)
	defer d.done(s)
	return s.delete(ctx, d.folder(key)+"/"+l.entries[i].name)
}

// Expire has the servers end the session for locks with this TTL, as they do when they have
// not heard of it for too long.
func (d *Driver) Expire(ctx context.Context, ttl time.Duration) error {
	s := d.session(ttl)
	defer d.done(s)
	l, err := s.ready(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	hello := greeting{0, int32(ttl / time.Millisecond), s.id, s.password}
	s.mu.Unlock()
	conn, err := l.member.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	other := &link{s: s, member: l.member, conn: conn, in: bufio.NewReader(conn)}
	_, err = other.exchange(hello.packet())
	if err == nil {
		other.exchange(other.form(goodbye())) // the answer may be that the connection ends
	}
	return err
}
