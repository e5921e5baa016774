package redis

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// confirmOnReplica waits until a replica has all writes of l's server for lock. For a node that does not fail
// over it returns nil at once. It writes a key after the other writes, and waits until a replica has that key.
// It uses a separate connection, because WAIT delays all later commands of its connection.
func (n *node) confirmOnReplica(ctx context.Context, l *connection, lock engine.Lock) error {
	if !n.place.Replaced() {
		return nil
	}
	if l == nil || n.link.Load() != l {
		return errMoved
	}
	ctx, cancel := context.WithTimeout(ctx, 2*pace.ConfirmTime())
	defer cancel()
	return n.net.Visit(ctx, l.server, func(conn *resp.Conn) error {
		if _, err := n.place.Login(ctx, l.server, conn); err != nil {
			return err
		}
		probe := n.d.opts.probeKeys(n.engine.Client() + n.place.SlotTag(lock.Key)).Key
		values, err := server.Ask(conn,
			[]string{"INFO"}, []string{"SET", probe, "", "PX", "1000"}, []string{"DEL", probe}, []string{"WAIT", "1", format.Millis(int64(pace.ConfirmTime()))})
		if err != nil {
			return err
		}
		info := server.ParseInfo(string(values[0].Text))
		has, _ := values[3].Int()
		switch {
		case !member.SameRun(l.run, member.Run(info["run_id"], server.PromotionID(info))):
			return errMoved
		case has > 0:
			return nil
		case info["connected_slaves"] != "0":
			return fmt.Errorf("no replica has answered within %v", pace.ConfirmTime())
		}
		return n.place.NoReplica(conn)
	})
}
