package faultproxy

import (
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// conn is a client's connection together with its connection to the server. p.mu guards all of it except the
// sockets.
type conn struct {
	p      *Proxy
	client net.Conn
	server stream

	up         []*request // from the client, not yet forwarded
	upEnd      bool       // nothing more will be added to up
	upWake     *sync.Cond
	gate       *Hold      // the Hold that last caught the first of up; nil: none
	stranded   bool       // up waits for the end of a Strand
	forgotten  bool       // neither up nor down moves any more
	pending    []*request // forwarded, not answered yet, oldest first
	serverGone bool

	down       []segment // from the server, not delivered yet
	downWake   *sync.Cond
	downTimer  *time.Timer // signals downWake when the first of down is due
	muted      bool        // after MuteAfter: nothing more is added to down
	clientGone bool        // nothing can be delivered to the client any more
}

// stream is a connection whose directions can be closed separately.
type stream interface {
	net.Conn
	CloseWrite() error
}

// segment is a piece of data for the client, or the end of the connection.
type segment struct {
	bytes []byte
	due   time.Time // zero: at once
	end   bool
}

func newConn(p *Proxy, client net.Conn, server stream) *conn {
	c := &conn{
		p: p, client: client, server: server,
		upWake: sync.NewCond(&p.mu), downWake: sync.NewCond(&p.mu),
	}
	c.downTimer = time.AfterFunc(time.Hour, func() {
		p.mu.Lock() // so that the signal cannot come between reading the clock and waiting
		defer p.mu.Unlock()
		c.downWake.Signal()
	})
	return c
}

// run returns when both connections are closed and all data is forwarded.
func (c *conn) run() {
	var pumps sync.WaitGroup
	pumps.Go(c.readClient)
	pumps.Go(c.sendUp)
	pumps.Go(c.readServer)
	pumps.Go(c.sendDown)
	pumps.Wait()
	c.downTimer.Stop()
}

// settleLosses ends pending waits for this connection, and gives back the losses that it claimed but did not cause.
func (c *conn) settleLosses() {
	delete(c.p.conns, c)
	for _, r := range slices.Concat(c.pending, c.up) {
		r.finishRequest()
		if r.loss != nil {
			r.loss.left++
		}
	}
}

func (c *conn) readClient() {
	next := resp.NewReader(c.client).ReadCommand
	if c.p.opaque {
		next = func() ([][]byte, []byte, error) {
			raw, err := readChunk(c.client)
			return nil, raw, err
		}
	}
	for {
		args, raw, err := next()
		if err != nil {
			break
		}
		c.p.mu.Lock()
		if !c.clientGone {
			c.up = append(c.up, &request{args: args, raw: raw})
			c.upWake.Signal()
		}
		c.p.mu.Unlock()
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.upEnd = true
	c.upWake.Signal()
	if c.serverGone { // muted: only the client was left
		c.dropClient()
	}
}

func (c *conn) sendUp() {
	var batch []byte
	for more := true; more; {
		batch, more = c.nextUp(batch[:0])
		if _, err := c.server.Write(batch); err != nil {
			return // readServer sees it too
		}
	}
	c.server.CloseWrite() // reads the remaining answers: closing at once could discard what was sent
}

// nextUp waits for requests that may be forwarded. It returns false with the last ones.
func (c *conn) nextUp(batch []byte) ([]byte, bool) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	for {
		switch {
		case c.p.closed || c.serverGone:
			return nil, false
		case c.p.stopUp || c.stranded || c.forgotten || (c.gate != nil && !c.gate.released):
		case len(c.up) > 0:
			if batch = c.forwardBatch(batch); len(batch) > 0 {
				return batch, true
			}
			continue // the first one is held
		case c.upEnd:
			return nil, false
		}
		c.upWake.Wait()
	}
}

// forwardBatch removes requests from up until one is held.
func (c *conn) forwardBatch(batch []byte) []byte {
	for len(c.up) > 0 {
		r := c.up[0]
		if c.gate = c.p.holdFor(r); c.gate != nil {
			break
		}
		c.up = c.up[1:]
		batch = append(batch, r.raw...)
		if len(r.args) > 0 { // the server does not answer an empty line
			c.p.stats.Requests++
			r.noteExpectedReply()
			r.loss = c.p.claimLoss(r.args)
			c.pending = append(c.pending, r)
		}
	}
	return batch
}

func (c *conn) readServer() {
	if c.p.opaque {
		c.readChunks()
	} else {
		c.readValues()
	}
	c.server.Close()

	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.serverGone = true
	c.upWake.Signal()
	if !c.muted || c.upEnd {
		c.deliverSegment(segment{end: true})
	}
}

func (c *conn) readValues() {
	in := resp.NewReader(c.server)
	for {
		v, err := in.ReadValue()
		if err != nil {
			return
		}
		c.p.mu.Lock()
		c.receiveValue(v)
		c.p.mu.Unlock()
	}
}

func (c *conn) readChunks() {
	for {
		raw, err := readChunk(c.server)
		if err != nil {
			return
		}
		c.p.mu.Lock()
		c.deliverSegment(segment{bytes: raw})
		c.p.mu.Unlock()
	}
}

// readChunk reads the available bytes.
func readChunk(r io.Reader) ([]byte, error) {
	buf := make([]byte, 16<<10)
	n, err := r.Read(buf)
	if n > 0 {
		err = nil // the next read returns it again
	}
	return buf[:n], err
}

func (c *conn) receiveValue(v resp.Value) {
	r := c.answeredRequest(v)
	if r != nil {
		c.p.stats.Replies++
	}
	if !c.muted && (r == nil || r.loss == nil) {
		c.deliverSegment(segment{bytes: c.p.rewriteReply(r, v)})
	}
	if r == nil || !r.answered {
		return
	}
	c.pending = c.pending[1:]
	r.finishRequest()
	if r.loss != nil {
		c.causeLoss(r.loss)
	}
}

// causeLoss cuts or mutes the connection after the reply to a request was dropped.
func (c *conn) causeLoss(l *loss) {
	if l.cut && !c.muted {
		c.deliverSegment(segment{end: true})
	}
	c.muted = true
	l.seen <- struct{}{}
}

func (c *conn) deliverSegment(s segment) {
	if c.p.delay > 0 {
		s.due = time.Now().Add(c.p.delay)
	}
	c.down = append(c.down, s)
	c.downWake.Signal()
}

func (c *conn) sendDown() {
	var batch []byte
	for more := true; more; {
		batch, more = c.nextDown(batch[:0])
		if _, err := c.client.Write(batch); err != nil {
			break
		}
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.dropClient()
}

// nextDown waits until something may be delivered. It returns false with the last of it.
func (c *conn) nextDown(batch []byte) ([]byte, bool) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	for !c.clientGone && !c.p.closed {
		for !c.p.stopDown && !c.forgotten && len(c.down) > 0 {
			first := c.down[0]
			if wait := first.timeLeft(); wait > 0 {
				c.downTimer.Reset(wait)
				break
			}
			c.down = c.down[1:]
			batch = append(batch, first.bytes...)
			if first.end {
				return batch, false
			}
		}
		if len(batch) > 0 {
			return batch, true
		}
		c.downWake.Wait()
	}
	return nil, false
}

func (s segment) timeLeft() time.Duration {
	if s.due.IsZero() {
		return 0
	}
	return time.Until(s.due)
}

// cutClient ends the client's side. It drops what has not been sent to the server, unless a Hold or a Strand keeps
// it.
func (c *conn) cutClient() {
	if !c.stranded && (c.gate == nil || c.gate.released) {
		for _, r := range c.up {
			r.finishRequest()
		}
		c.up = nil
	}
	c.upEnd = true
	c.upWake.Signal()
	c.dropClient()
}

func (c *conn) dropClient() {
	c.clientGone, c.down = true, nil
	c.downWake.Signal()
	c.client.Close()
}
