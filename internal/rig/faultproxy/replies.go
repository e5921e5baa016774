package faultproxy

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// request is a command on its way, from its arrival to its answer.
type request struct {
	args     [][]byte
	raw      []byte
	loss     *loss         // that swallows its reply; nil: none
	verb     string        // of a (un)subscription, in lower case: it is answered by confirmations
	confirms int           // that are still to come; 0 at first for an UNSUBSCRIBE from everything
	answered bool          // completely
	done     chan struct{} // of one that was held; closed with the answer or the end of its connection
}

var subscriptions = map[string]bool{
	"subscribe": true, "psubscribe": true, "ssubscribe": true,
	"unsubscribe": true, "punsubscribe": true, "sunsubscribe": true,
}

// expect notes how the request will be answered. A (un)subscription is confirmed once for each channel: in RESP3 by pushes,
// in RESP2 by arrays.
func (r *request) expect() {
	if verb := strings.ToLower(string(r.args[0])); subscriptions[verb] {
		r.verb, r.confirms = verb, len(r.args)-1
	}
}

// finish is called once, when the request leaves conn.up or conn.pending for good.
func (r *request) finish() {
	if r.done != nil {
		close(r.done)
	}
}

// answered returns the request that v belongs to, with request.answered set if v completes its answer. It returns nil for a
// value out of turn: a push, a message to a RESP2 subscriber, or an error that the server volunteers.
func (c *conn) answered(v resp.Value) *request {
	verb, channel := confirmation(v)
	if verb != "" {
		c.subscribed(verb, channel, v.Kind)
	}
	if len(c.pending) == 0 {
		return nil
	}
	r := c.pending[0]
	switch {
	case r.verb == "":
		if v.Kind == '>' || (c.listensByRESP2() && isMessage(v)) {
			return nil
		}
		r.answered = true
	case v.Kind != '>' && v.Kind != '*': // refused, or queued in a transaction
		r.answered = true
	case verb != r.verb:
		return nil
	case r.confirms > 0:
		r.confirms--
		r.answered = r.confirms == 0
	default: // from everything: one confirmation each, or a single one if there was nothing
		r.answered = len(c.channels[family(verb)]) == 0
	}
	return r
}

// subscribed keeps the set of channels, which tells when an UNSUBSCRIBE from everything is complete.
func (c *conn) subscribed(verb, channel string, kind byte) {
	set := c.channels[family(verb)]
	if set == nil {
		set = map[string]bool{}
		c.channels[family(verb)] = set
	}
	if strings.HasSuffix(verb, "unsubscribe") {
		delete(set, channel)
	} else {
		set[channel] = true
	}
	c.resp2 = kind == '*'
}

// listensByRESP2 tells whether arrays may be messages. A subscriber by RESP2 can send no command whose reply looks like one.
func (c *conn) listensByRESP2() bool {
	return c.resp2 && len(c.channels[""])+len(c.channels["p"])+len(c.channels["s"]) > 0
}

// family is what a verb is about: channels, patterns or sharded channels.
func family(verb string) string {
	return strings.TrimSuffix(strings.TrimSuffix(verb, "subscribe"), "un")
}

// confirmation returns the verb and the channel if v confirms a (un)subscription: an array or push of verb, channel, count.
func confirmation(v resp.Value) (verb, channel string) {
	if (v.Kind != '>' && v.Kind != '*') || len(v.Elems) != 3 || v.Elems[2].Kind != ':' {
		return "", ""
	}
	if verb = string(v.Elems[0].Text); !subscriptions[verb] {
		return "", ""
	}
	return verb, string(v.Elems[1].Text)
}

func isMessage(v resp.Value) bool {
	if v.Kind != '*' || len(v.Elems) < 3 {
		return false
	}
	switch string(v.Elems[0].Text) {
	case "message", "pmessage", "smessage":
		return true
	}
	return false
}
