package zookeeper

import (
	"context"
	"errors"
)

// Delete deletes the node of an owner, as people do by hand.
func (d *Driver) Delete(ctx context.Context, key, owner string) error {
	l, err := d.lookUp(ctx, key)
	i := of(owner, l.entries)
	if err != nil || i < 0 {
		return errors.Join(err, errAgain)
	}
	s := d.session(lookTTL)
	defer d.done(s)
	return s.delete(ctx, d.folder(key)+"/"+l.entries[i].name)
}
