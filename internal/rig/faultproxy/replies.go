package faultproxy

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// request is a command, from its arrival to its answer.
type request struct {
	args     [][]byte
	raw      []byte
	loss     *loss         // drops its reply; nil: none
	confirms int           // of SUBSCRIBE and UNSUBSCRIBE: number of missing pushes, one for each channel
	answered bool          // it has its whole answer
	done     chan struct{} // of a held request; closed with the answer or the end of its connection
}

// noteExpectedReply records how the request will be answered.
func (r *request) noteExpectedReply() {
	if verb := r.verb(); verb == "subscribe" || verb == "unsubscribe" {
		r.confirms = len(r.args) - 1
	}
}

func (r *request) verb() string { return strings.ToLower(string(r.args[0])) }

// finishRequest is called once, when the request leaves conn.up or conn.pending for good.
func (r *request) finishRequest() {
	if r.done != nil {
		close(r.done)
	}
}

// answeredRequest returns the request that v answers, and sets request.answered if v completes the answer. It
// returns nil for a value without a request: a push that confirms nothing, or an error that the server sends
// unasked.
func (c *conn) answeredRequest(v resp.Value) *request {
	if len(c.pending) == 0 {
		return nil
	}
	r := c.pending[0]
	switch {
	case v.Kind != '>': // also a subscription that is rejected
		r.answered = true
	case r.confirms == 0 || len(v.Elems) == 0 || string(v.Elems[0].Text) != r.verb():
		return nil
	default:
		r.confirms--
		r.answered = r.confirms == 0
	}
	return r
}
