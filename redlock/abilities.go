package redlock

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// clockNoise is how far a node's clock may be from ours before it is reported.
const clockNoise = time.Second

// parseInfo splits the reply to INFO into its fields.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			info[k] = v
		}
	}
	return info
}

// parseTime reads the reply to TIME, in µs since 1970.
func parseTime(v resp.Value) (int64, error) { return timeOf(v.Decode()) }

func timeOf(reply any) (int64, error) {
	list, _ := reply.([]any)
	if len(list) != 2 {
		return 0, unexpected(errors.New("not a time"))
	}
	sec, _ := list[0].(string)
	micro, _ := list[1].(string)
	s, err1 := strconv.ParseInt(sec, 10, 64)
	us, err2 := strconv.ParseInt(micro, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, unexpected(err)
	}
	return s*1_000_000 + us, nil
}

// skew is a clock that differs from ours.
func skew(node int64, before time.Time, rtt time.Duration) error {
	off := time.UnixMicro(node).Sub(before.Add(rtt / 2))
	if off.Abs() <= clockNoise+rtt {
		return nil
	}
	return advise(fmt.Errorf("its clock differs from this machine's by %v", off.Round(time.Millisecond)),
		"synchronise both (fencing after a loss of data relies on clocks)")
}

// prepare loads the scripts and tries the rights they need.
func (g *gate) prepare(n *node, l *resp.Conn, rep *report) error {
	cmds := g.opts.format().loads()
	lock := g.opts.probeKeys(n.engine.Client() + n.tag())
	cmds = append(cmds, []string{
		"EVALSHA", g.opts.format().Probe.SHA, "3", lock.Key, lock.Fence, lock.Queue, wire.Wake + n.engine.Client(),
	})
	values, err := ask(l, cmds...)
	if err != nil {
		return err
	}
	refused, _ := values[len(values)-1].Decode().([]any)
	for i, r := range refused {
		text, _ := r.(string)
		switch {
		case text == "":
		case i == 0:
			rep.mute = errors.New(text)
		default:
			return errors.New(text)
		}
	}
	return nil
}

// subscribable finds out whether a connection that is subscribed still carries
// requests, and the confirmations in their place among the replies. Where it does
// not, waiters poll. The channel is one on which nobody sends.
func (g *gate) subscribable(n *node, l *resp.Conn, hello map[string]string, rep *report) error {
	if rep.mute != nil {
		return nil // without a right, which may be meant so: an event says it
	}
	mute := func(format string, args ...any) {
		rep.mute = fmt.Errorf(format, args...)
		rep.warn("wake", advise(fmt.Errorf("it cannot wake waiters, who poll: %w", rep.mute), "a Redis or Valkey without a proxy wakes them"))
	}
	if p := hello["proto"]; p != "3" {
		mute("it speaks protocol %s, and without 3 a connection that is subscribed carries no requests", cmp.Or(p, "2 only"))
		return nil
	}
	channel := wire.Wake + "~probe:" + n.engine.Client()
	values, err := l.Do([]string{"SUBSCRIBE", channel}, []string{"TIME"}, []string{"UNSUBSCRIBE", channel})
	switch {
	case err != nil:
		return err
	case values[0].IsError():
		rep.deaf = serverError(values[0])
	case values[1].IsError():
		mute("a connection that is subscribed carries no requests: %w", serverError(values[1]))
	case values[0].Kind != '>':
		mute("it does not confirm a subscription in its place among the replies")
	}
	return nil
}

// ordered says whether a server is known to send messages in their place among the
// replies. RESP3 does not promise that; Redis and Valkey do it, with one thread for all
// commands. Others that call themselves so are told by their INFO.
func ordered(hello, info map[string]string) bool {
	if hello["server"] != "redis" && hello["server"] != "valkey" || info["gcc_version"] == "" {
		return false
	}
	for _, other := range []string{"dragonfly_version", "mvcc_depth", "garnet_version", "kvrocks_version"} { // the second is KeyDB
		if info[other] != "" {
			return false
		}
	}
	return true
}
