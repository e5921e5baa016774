package redlock

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// swap replaces the marker, if it is still old, and says whether it was.
func (g *gate) swap(l *resp.Conn, key, old, next string) (done bool, err error) {
	values, err := ask(l, []string{"SCRIPT", "LOAD", wire.Admit.Text}, []string{"EVALSHA", wire.Admit.SHA, "1", key, old, next})
	if err != nil {
		return false, fmt.Errorf("its marker %s cannot be written: %w", key, err)
	}
	number, _ := values[1].Int()
	return number == 1, nil
}

// durable says whether the server writes everything to disk before it answers, and reads it
// back when it starts.
func (g *gate) durable(l *resp.Conn) bool {
	if kept, err := onDisk(l); err != nil || !kept {
		return false
	}
	read, err := g.replays(l)
	return read && err == nil
}

// replays says whether the server reads back what scripts have written: they are transactions
// in its append-only file, and most releases of Redis and Valkey leave out those to which the
// default user has no right (redis/redis#14541).
func (g *gate) replays(l *resp.Conn) (bool, error) {
	lock := g.opts.probeKeys("doctor")
	tries := [][]string{{"ACL", "DRYRUN", "default", "SET", lock.Key, ""}, {"ACL", "DRYRUN", "default", "ZADD", lock.Queue, "1", "x"}}
	values, err := l.Do(append(tries, []string{"ACL", "WHOAMI"})...)
	if err != nil {
		return false, err
	}
	if string(values[2].Text) == "default" {
		return true, nil // it is this client's user, which has the rights or is refused: see prepare
	}
	if err := firstError(tries, values[:2]); err != nil {
		return false, err
	}
	return string(values[0].Text) == "OK" && string(values[1].Text) == "OK", nil
}

// onDisk says whether the server writes everything to disk before it answers.
func onDisk(l *resp.Conn) (bool, error) {
	values, err := ask(l, []string{"CONFIG", "GET", "appendonly"}, []string{"CONFIG", "GET", "appendfsync"})
	if err != nil {
		return false, err
	}
	return setting(values[0]) == "yes" && setting(values[1]) == "always", nil
}

// setting is the value in a reply to CONFIG GET.
func setting(v resp.Value) string {
	if list, _ := v.Decode().([]any); len(list) == 2 {
		s, _ := list[1].(string)
		return s
	}
	return ""
}
