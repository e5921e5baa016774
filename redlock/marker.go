package redlock

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// swap replaces the marker, if it is still old, and says whether it was.
func (g *gate) swap(l *resp.Conn, key, old, next string) (done bool, err error) {
	values, err := server.Ask(l, []string{"SCRIPT", "LOAD", wire.Admit.Text}, []string{"EVALSHA", wire.Admit.SHA, "1", key, old, next})
	if err != nil {
		return false, fmt.Errorf("its marker %s cannot be written: %w", key, err)
	}
	number, _ := values[1].Int()
	return number == 1, nil
}

// durable says whether the server writes everything to disk before it answers, and reads it
// back when it starts.
func (g *gate) durable(l *resp.Conn) bool {
	if kept, err := server.OnDisk(l); err != nil || !kept {
		return false
	}
	read, err := server.Replays(l, g.opts.probeKeys("doctor"))
	return read && err == nil
}
