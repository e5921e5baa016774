package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// selection selects the locks that a page shows, and their order.
type selection struct {
	filter string
	sort   live.Sort
	page   int    // from 0
	lock   string // lock to show in detail; "": none
}

func parseSelection(r *http.Request) (selection, error) {
	q := r.URL.Query()
	w := selection{filter: q.Get("filter"), sort: live.Sort(q.Get("sort")), lock: q.Get("lock")}
	if w.sort == "" {
		w.sort = live.ByState
	}
	if !slices.Contains(live.Sorts, w.sort) {
		return w, fmt.Errorf("there is no order %q", w.sort)
	}
	if len(w.filter) > maxFilter {
		return w, fmt.Errorf("the filter is longer than %d bytes", maxFilter)
	}
	if text := q.Get("page"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return w, fmt.Errorf("%q is not a page", text)
		}
		w.page = n
	}
	return w, nil
}

// The data of a page, sent once a second. Times are in ms. Tokens are strings, because JavaScript cannot hold
// all int64s.
type (
	scene struct {
		Headline  string `json:"headline"`
		Level     string `json:"level"`
		Error     string `json:"error,omitempty"`
		Prefix    string `json:"prefix,omitempty"`
		Nodes     []node `json:"nodes"`
		Locks     int    `json:"locks"`
		Held      int    `json:"held"`
		Waiting   int    `json:"waiting"`
		Trouble   int    `json:"trouble"`
		Hidden    int    `json:"hidden"`
		HandOvers string `json:"hand_overs"` // per second
		Whole     int64  `json:"whole"`      // age of the last complete read; -1: none
		Matching  int    `json:"matching"`
		Page      int    `json:"page"`
		Pages     int    `json:"pages"`
		Rows      []row  `json:"rows"`
		Lock      *lock  `json:"lock,omitempty"`
		Force     bool   `json:"force"` // force-release is allowed
	}
	node struct {
		Node  string `json:"node"`
		State string `json:"state"`
		Level string `json:"level"`
		Cause string `json:"cause,omitempty"`
		Trip  string `json:"trip,omitempty"` // round-trip time
	}
	row struct {
		Name    string `json:"name"`
		State   string `json:"state"`
		Level   string `json:"level"`
		Why     string `json:"why,omitempty"`
		Holder  string `json:"holder,omitempty"` // the last known one, if too few nodes answer
		IsHeld  bool   `json:"is_held"`
		Held    int64  `json:"held"` // 0: not known
		Left    int64  `json:"left"` // -1: no end
		Waiting int    `json:"waiting"`
		Token   string `json:"token,omitempty"`
	}
	lock struct {
		row
		Owner     string   `json:"owner,omitempty"`
		Asked     int64    `json:"asked"` // age of the request, by the holder's clock; -1: unknown
		HandOvers int      `json:"hand_overs"`
		Queue     []waiter `json:"queue"`
		Votes     []vote   `json:"votes"`
		Error     string   `json:"error,omitempty"`
	}
	waiter struct {
		Holder string `json:"holder"`
		Asked  int64  `json:"asked"`
	}
	vote struct {
		Node    string `json:"node"`
		Vote    string `json:"vote"` // holder, another, nobody or silent
		Level   string `json:"level"`
		Owner   string `json:"owner,omitempty"`
		Token   string `json:"token,omitempty"`
		Left    int64  `json:"left"`
		Waiting int    `json:"waiting"`
		Error   string `json:"error,omitempty"`
	}
)

// serveEvents streams the events of a page until the page or the console closes.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	want, err := parseSelection(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%v", err)
		return
	}
	select {
	case s.seats <- struct{}{}:
		defer func() { <-s.seats }()
	default:
		writeError(w, http.StatusServiceUnavailable, "too many pages look at this console; close some")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	out.SetReadDeadline(time.Time{}) // the page sends nothing more
	timer := time.NewTicker(s.every)
	defer timer.Stop()
	for {
		text, err := json.Marshal(s.scene(r.Context(), want))
		if err != nil || r.Context().Err() != nil {
			return
		}
		out.SetWriteDeadline(time.Now().Add(s.slow))
		if _, err := w.Write(slices.Concat([]byte("data: "), bytes.TrimSpace(text), []byte("\n\n"))); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
}

// scene returns the data of a page now.
func (s *Server) scene(ctx context.Context, want selection) scene {
	p := s.opts.Source.Picture()
	text, level := p.Headline()
	rows := p.Select(want.filter, want.sort)
	sc := scene{
		Headline: text, Level: level.String(), Prefix: p.Prefix, Locks: len(p.Rows), Held: p.Held, Waiting: p.Waiters, Trouble: p.Bad + p.Warn,
		Hidden: p.Hidden, HandOvers: strconv.FormatFloat(p.HandOvers, 'f', 1, 64), Whole: age(p.Taken, p.Whole), Matching: len(rows),
		Pages: max((len(rows)+pageRows-1)/pageRows, 1), Force: s.opts.Force != nil, Nodes: nodeList(p), Rows: []row{},
	}
	if p.Err != nil {
		sc.Error = p.Err.Error()
	}
	sc.Page = min(want.page, sc.Pages-1)
	var names []string
	for _, r := range rows[sc.Page*pageRows : min((sc.Page+1)*pageRows, len(rows))] {
		sc.Rows = append(sc.Rows, newRow(p, r))
		names = append(names, r.Key)
	}
	s.opts.Source.Want(names...)
	if want.lock != "" {
		ctx, cancel := context.WithTimeout(ctx, pace.DetailTime())
		defer cancel()
		sc.Lock = newLock(p, s.opts.Source.Detail(ctx, want.lock))
	}
	return sc
}

func nodeList(p *live.Picture) []node {
	all := []node{}
	for _, e := range p.Nodes {
		n := node{Node: e.Node, State: string(e.State), Level: live.NodeLevel(e.State).String(), Trip: live.RoundTrip(e)}
		if e.Err != nil {
			n.Cause = e.Err.Error()
		}
		all = append(all, n)
	}
	return all
}

func newRow(p *live.Picture, r *live.Row) row {
	word, level, why := p.State(r)
	out := row{Name: r.Key, State: word, Level: level.String(), Why: why, Waiting: r.Waiters, Holder: r.Who()}
	if r.Held {
		out.IsHeld, out.Held, out.Left, out.Token = true, p.HeldFor(r).Milliseconds(), p.Left(r).Milliseconds(), view.Token(r.Token)
		if r.Remaining < 0 {
			out.Left = -1
		}
	}
	return out
}

func newLock(p *live.Picture, d live.Detail) *lock {
	r := d.Row
	l := &lock{
		row: newRow(p, r), Owner: r.Owner, Asked: age(p.Taken, r.Since), HandOvers: r.HandOvers, Queue: []waiter{}, Votes: []vote{},
	}
	if d.Err != nil {
		l.Error = d.Err.Error()
	}
	for _, w := range d.Queue {
		l.Queue = append(l.Queue, waiter{w.Holder.String(), age(p.Taken, w.Since)})
	}
	for _, n := range r.Nodes {
		v := vote{Node: n.Node, Vote: "holder", Level: live.Fine.String(), Owner: n.Owner, Token: view.Token(holdfast.Token(n.Token)), Waiting: n.Waiters}
		v.Left = n.Remaining.Milliseconds()
		if n.Remaining < 0 {
			v.Left = -1
		}
		switch {
		case n.Err != nil:
			v.Vote, v.Level, v.Error = "silent", live.Bad.String(), n.Err.Error()
		case n.Owner == "":
			v.Vote = "nobody"
		case n.Owner != r.Owner:
			v.Vote = "another"
		}
		if r.Held && (v.Vote == "nobody" || v.Vote == "another") {
			v.Level = live.Warn.String()
		}
		l.Votes = append(l.Votes, v)
	}
	return l
}

// age returns the milliseconds from then to now, or -1 if then is unknown.
func age(now, then time.Time) int64 {
	if then.IsZero() {
		return -1
	}
	return max(now.Sub(then).Milliseconds(), 0)
}
