// Package view formats a lock: as JSON for programs, and as text for people. show, ls, top and console share
// it.
package view

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/election"
)

// Lock describes a lock, for programs.
type Lock struct {
	Name        string          `json:"name"`
	Held        bool            `json:"held"`
	Kept        bool            `json:"kept,omitempty"`    // released, and kept for its minimum time
	Unknown     bool            `json:"unknown,omitempty"` // too few nodes have answered
	Holder      holdfast.Holder `json:"holder,omitzero"`
	Owner       string          `json:"owner,omitempty"`
	Token       holdfast.Token  `json:"token,omitempty"`
	Leader      *Leader         `json:"leader,omitempty"`  // the holder, if it was elected
	AskedAt     time.Time       `json:"asked_at,omitzero"` // by the holder's clock
	RemainingMS int64           `json:"remaining_ms"`      // -1: no end
	Waiting     int             `json:"waiting"`
	Queue       []Waiter        `json:"queue,omitempty"` // the first waiters
	Nodes       []Node          `json:"nodes,omitempty"`
}

// Leader is an elected holder.
type Leader struct {
	Term  holdfast.Token `json:"term"`
	Value string         `json:"value"` // the value that it proclaims
}

// Waiter is one client in the queue of a lock.
type Waiter struct {
	Owner   string          `json:"owner"`
	Holder  holdfast.Holder `json:"holder"`
	AskedAt time.Time       `json:"asked_at,omitzero"` // by the waiter's clock
}

// Node is the state of a lock on one node.
type Node struct {
	Node        string         `json:"node"`
	Owner       string         `json:"owner,omitempty"`
	Token       holdfast.Token `json:"token,omitempty"`
	RemainingMS int64          `json:"remaining_ms"`
	Waiting     int            `json:"waiting"`
	Error       string         `json:"error,omitempty"`
}

// NewLock converts st, with the first waiters, for programs.
func NewLock(st holdfast.Status, queue []driver.Waiter) Lock {
	l := Lock{
		Name: st.Key, Held: st.Held, Kept: st.Kept, Unknown: Unknown(st), Holder: st.Holder, Owner: st.Owner, Token: st.Token, AskedAt: st.Since,
		RemainingMS: millis(st.Remaining), Waiting: st.Waiters,
	}
	if value, leads := election.Value(st.Holder); leads && st.Held && !st.Kept {
		l.Leader = &Leader{st.Token, value}
	}
	for _, w := range queue {
		l.Queue = append(l.Queue, Waiter{w.Owner, w.Holder, w.Since})
	}
	for _, n := range st.Nodes {
		node := Node{Node: n.Node, Owner: n.Owner, Token: holdfast.Token(n.Token), RemainingMS: millis(n.Remaining), Waiting: n.Waiters}
		if n.Err != nil {
			node.Error = n.Err.Error()
		}
		l.Nodes = append(l.Nodes, node)
	}
	return l
}

func millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// State returns held, kept (released, and kept for its minimum time), free or unknown.
func State(st holdfast.Status) string {
	switch {
	case st.Kept:
		return "kept"
	case st.Held:
		return "held"
	case Unknown(st):
		return "unknown"
	}
	return "free"
}

// Unknown reports whether too few nodes have answered.
func Unknown(st holdfast.Status) bool {
	silent := 0
	for _, n := range st.Nodes {
		if n.Err != nil {
			silent++
		}
	}
	return 2*silent >= len(st.Nodes) && silent > 0
}

// Holder describes the holder of a lock. A holder with neither name nor token is not a Holdfast client.
func Holder(st holdfast.Status) string {
	if st.Holder == (holdfast.Holder{}) && st.Token == 0 {
		return "another library"
	}
	return st.Holder.String()
}

// Token formats a token; "" if there is none.
func Token(t holdfast.Token) string {
	if t == 0 {
		return ""
	}
	return strconv.FormatInt(int64(t), 10)
}

// Age formats the time since then, by a clock that may be ahead of this one.
func Age(since time.Time) string { return Short(max(time.Since(since), 0)) }

// Short rounds a duration for people.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "no end"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// Printable escapes a name so that it cannot control the terminal.
func Printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

// EscapeJSON escapes unprintable characters in a JSON document, so that a terminal or an editor follows no
// control sequence and no change of text direction. The document means the same: JSON has such characters only
// in strings, where \u and four digits replace them.
func EscapeJSON(document []byte) []byte {
	steers := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if !bytes.ContainsFunc(document, steers) {
		return document
	}
	var out []byte
	for _, r := range string(document) {
		switch {
		case !steers(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// Completable reports whether each shell reads s in a command line as one word with the text s: it has only
// letters, digits and ._/:@+=- , and begins with a letter, a digit or one of ._/ . Other clients choose names,
// and shells insert the common prefix of candidates unquoted. A word that begins with = is a path to zsh; one
// that begins with @ is a variable to PowerShell, for which a comma also separates two words.
func Completable(s string) bool {
	return s != "" && !strings.ContainsRune(":@+=-", rune(s[0])) && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._/:@+=-", r)
	})
}
