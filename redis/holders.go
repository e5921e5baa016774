package redis

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	maxHolders        = 1024
	holderKeep        = 30 * time.Second
	unknownClientKeep = time.Second // time for which an unknown client is not looked up again
)

// holderCache keeps the process of each client, so that a TryAcquire of a held lock needs no second request.
type holderCache struct {
	mu    sync.Mutex // guards the fields below
	mine  driver.Holder
	known map[string]knownHolder
}

type knownHolder struct {
	holder driver.Holder
	until  time.Time
}

// setSelf stores the process of this client, and reports whether it is new.
func (h *holderCache) setSelf(me driver.Holder) (changed bool) {
	me.Note = "" // the note belongs to one lease, and is part of its owner id
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.mine != me
	h.mine = me
	return changed
}

// self returns the process of this client.
func (h *holderCache) self() driver.Holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mine
}

// findClient returns the process of another client, if it was looked up recently.
func (h *holderCache) findClient(client string) (driver.Holder, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, ok := h.known[client]
	return known.holder, ok && time.Now().Before(known.until)
}

// keepClient stores the process of another client; the zero Holder: no node knows it.
func (h *holderCache) keepClient(client string, found driver.Holder) {
	keep := holderKeep
	if found == (driver.Holder{}) {
		keep = unknownClientKeep // a node that knows it may only have answered late
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= maxHolders {
		h.known = make(map[string]knownHolder)
	}
	h.known[client] = knownHolder{holder: found, until: time.Now().Add(keep)}
}
