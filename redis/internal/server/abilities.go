package server

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
)

// maxClockSkew is the largest difference between a node's clock and this machine's clock that is not reported.
const maxClockSkew = time.Second

// maxFields bounds the fields of INFO. Servers have some 250, and one for each kind of error.
const maxFields = 20_000

// ParseInfo splits the reply to INFO into its fields.
func ParseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if len(info) == maxFields {
			break
		}
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			info[k] = v
		}
	}
	return info
}

// ParseTime parses the reply to TIME, in µs since 1970.
func ParseTime(v resp.Value) (int64, error) { return TimeOf(v.Decode()) }

// TimeOf is ParseTime for a decoded reply.
func TimeOf(reply any) (int64, error) {
	list, _ := reply.([]any)
	if len(list) != 2 {
		return 0, resp.Unexpected(errors.New("not a time"))
	}
	sec, _ := list[0].(string)
	micro, _ := list[1].(string)
	s, err1 := strconv.ParseInt(sec, 10, 64)
	us, err2 := strconv.ParseInt(micro, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, resp.Unexpected(err)
	}
	return s*1_000_000 + us, nil
}

// CheckClockSkew returns an error if a node's clock differs from this machine's.
func CheckClockSkew(node int64, before time.Time, rtt time.Duration) error {
	off := time.UnixMicro(node).Sub(before.Add(rtt / 2))
	if off.Abs() <= maxClockSkew+rtt {
		return nil
	}
	return Advise(fmt.Errorf("its clock differs from this machine's by %v", off.Round(time.Millisecond)),
		"synchronise both (fencing after a loss of data relies on clocks)")
}

// WakeFaults holds the reasons why waiters cannot be woken.
type WakeFaults struct {
	Mute error // the server cannot wake waiters
	Deaf error // this client cannot subscribe; the first wait tries again
}

// Try loads the scripts and tries the permissions that they need, on the keys of a lock that no other client
// has. It records in w if the server may not wake waiters.
func (w *WakeFaults) Try(l *resp.Conn, f *format.Format, lock engine.Lock, client string) error {
	values, err := Ask(l, append(slices.Clone(f.LoadCommands()), []string{"EVALSHA", f.Probe.SHA, "3", lock.Key, lock.Fence, lock.Queue, wire.Wake + client})...)
	if err != nil {
		return err
	}
	refused, _ := values[len(values)-1].Decode().([]any)
	for i, r := range refused {
		text, _ := r.(string)
		switch {
		case text == "":
		case i == 0:
			w.Mute = errors.New(text)
		default:
			return errors.New(text)
		}
	}
	return nil
}

// CheckSteps returns an error if scripts of the server are not atomic, or its errors undo the writes of a
// script. known is false if the server has not shown it, for example because its memory is full. All commands
// sent over l have been answered; other is another connection. No other check, not even an earlier one of this
// client, uses the keys of lock.
func CheckSteps(l, other *resp.Conn, lock engine.Lock) (known bool, err error) {
	for range stepTries {
		tried, known, err := trySteps(l, other, lock)
		if tried || err != nil {
			return known, err
		}
	}
	return false, nil
}

// stepTries bounds the tries at a script while no command of the other connection comes after its begin.
const stepTries = 3

// trySteps runs the script of CheckSteps once. tried is false unless the server has received the command of the
// other connection after the begin of the script: the command may have come before, or have reached another server.
func trySteps(l, other *resp.Conn, lock engine.Lock) (tried, known bool, err error) {
	// The server reads the key at once after the script. Later it may have expired.
	batch := resp.AppendCommand(nil, "SCRIPT", "LOAD", wire.Step.Text)
	batch = resp.AppendCommand(batch, "EVALSHA", wire.Step.SHA, "2", lock.Key, lock.Queue)
	if _, err := l.Write(resp.AppendCommand(batch, "GET", lock.Key)); err != nil {
		return false, false, err
	}
	other.Do([]string{"SET", lock.Queue, "probe", "PX", "10000"}) // while the script runs
	var replies [3]resp.Value
	for i := range replies {
		if replies[i], err = l.ReadValue(); err != nil {
			return false, false, err
		}
	}
	said, written := replies[1], replies[2]
	interleaved, failed := string(said.Text) == "INTERLEAVED", said.IsError() && strings.Contains(string(said.Text), "not an integer")
	values, err := l.Do([]string{"GET", lock.Queue}, []string{"DEL", lock.Key, lock.Queue})
	switch {
	case err != nil:
		return false, false, err
	case interleaved:
		return true, true, UnfitError("give Redis or Valkey; where a setting lets scripts run beside other commands, turn it off",
			"its scripts are not atomic: it executed a command of another client in the middle of one, and so would give one lock to two clients")
	case failed && written.Null:
		return true, true, UnfitError("give Redis or Valkey", "it has lost what a script wrote before an error")
	case !failed || string(written.Text) != "probe":
		return true, false, nil
	}
	after := string(values[0].Text) == "probe"
	return after, after, nil
}

// Subscribe checks whether a subscribed connection still carries requests, and confirms in order with the
// replies. If not, waiters poll, and defect is the reason. No client publishes on the channel.
func (w *WakeFaults) Subscribe(l *resp.Conn, hello map[string]string, client string) (defect, err error) {
	if w.Mute != nil {
		return nil, nil // a permission is missing, perhaps on purpose: an event reports it
	}
	mute := func(format string, args ...any) error {
		w.Mute = fmt.Errorf(format, args...)
		return Advise(fmt.Errorf("it cannot wake waiters, who poll: %w", w.Mute), "a Redis or Valkey without a proxy wakes them")
	}
	if p := hello["proto"]; p != "3" {
		return mute("it speaks protocol %s, and without 3 a connection that is subscribed carries no requests", cmp.Or(p, "2 only")), nil
	}
	channel := wire.Wake + "~probe:" + client
	values, err := l.Do([]string{"SUBSCRIBE", channel}, []string{"TIME"}, []string{"UNSUBSCRIBE", channel})
	switch {
	case err != nil:
		return nil, err
	case values[0].IsError():
		w.Deaf = values[0].Err()
	case values[1].IsError():
		return mute("a connection that is subscribed carries no requests: %w", values[1].Err()), nil
	case values[0].Kind != '>':
		return mute("it does not confirm a subscription in its place among the replies"), nil
	}
	return nil, nil
}

// KeepsMessageOrder reports whether a server is known to send messages in their place among the replies. RESP3
// does not promise that; Redis and Valkey do it, because they run all commands in one thread. INFO identifies
// other servers that use their names.
func KeepsMessageOrder(hello, info map[string]string) bool {
	if !slices.Contains([]string{"redis", "valkey", "redict"}, hello["server"]) || info["gcc_version"] == "" {
		return false
	}
	for _, other := range []string{"dragonfly_version", "mvcc_depth", "garnet_version", "kvrocks_version"} { // the second is KeyDB
		if info[other] != "" {
			return false
		}
	}
	return true
}

// PromotionID returns the id of the last promotion of a server; "" if there was none, or so long ago that the
// server has forgotten it (repl-backlog-ttl, usually an hour).
func PromotionID(info map[string]string) string {
	if old := info["master_replid2"]; strings.Trim(old, "0") != "" {
		return strings.Clone(old) // a substring would keep all of INFO in memory
	}
	return ""
}

// SyncsToDisk reports whether the server writes everything to disk before it answers. An error of type
// resp.Error, or ErrHidden, means that the server does not tell.
func SyncsToDisk(l *resp.Conn) (bool, error) {
	values, err := Ask(l, []string{"CONFIG", "GET", "appendonly"}, []string{"CONFIG", "GET", "appendfsync"})
	if err != nil {
		return false, err
	}
	file, sync := Setting(values[0]), Setting(values[1])
	if file == "" || file == "yes" && sync == "" {
		return false, ErrHidden
	}
	return file == "yes" && sync == "always", nil
}

// ErrHidden is returned for a setting that CONFIG GET does not return, as with some managed services.
var ErrHidden = errors.New("CONFIG GET does not show it")

// ReplaysScripts reports whether the server reads back the writes of scripts after a restart. They are
// transactions in its append-only file, and most releases of Redis and Valkey skip those for which the default
// user has no permission (redis/redis#14541).
func ReplaysScripts(l *resp.Conn, lock engine.Lock) (bool, error) {
	tries := [][]string{{"ACL", "DRYRUN", "default", "SET", lock.Key, ""}, {"ACL", "DRYRUN", "default", "ZADD", lock.Queue, "1", "x"}}
	values, err := l.Do(append(tries, []string{"ACL", "WHOAMI"})...)
	if err != nil {
		return false, err
	}
	if string(values[2].Text) == "default" {
		return true, nil // the default user is this client's own, which has the permissions or fails in WakeFaults.Try
	}
	if err := FirstError(tries, values[:2]); err != nil {
		return false, err
	}
	return string(values[0].Text) == "OK" && string(values[1].Text) == "OK", nil
}

// Setting returns the value in a reply to CONFIG GET.
func Setting(v resp.Value) string {
	if list, _ := v.Decode().([]any); len(list) == 2 {
		s, _ := list[1].(string)
		return s
	}
	return ""
}

// CheckEviction rejects a server that may evict locks.
func CheckEviction(info map[string]string) error {
	p := info["maxmemory_policy"]
	if p == "" || p == "noeviction" {
		return nil
	}
	return UnfitError("set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf; with a managed service, in its settings), or "+
		"accept that with eviction=allow", "maxmemory-policy is %s, which can evict locks", p)
}
