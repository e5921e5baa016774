package cli

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/driver"
)

// lock is what show and ls say about a lock, for programs.
type lock struct {
	Name        string          `json:"name"`
	Held        bool            `json:"held"`
	Unknown     bool            `json:"unknown,omitempty"` // too few nodes have answered
	Holder      holdfast.Holder `json:"holder,omitzero"`
	Owner       string          `json:"owner,omitempty"`
	Token       holdfast.Token  `json:"token,omitempty"`
	AskedAt     time.Time       `json:"asked_at,omitzero"` // by the holder's clock
	RemainingMS int64           `json:"remaining_ms"`      // -1: the holder set no end
	Waiting     int             `json:"waiting"`
	Queue       []waiter        `json:"queue,omitempty"` // the first of those who wait
	Nodes       []node          `json:"nodes,omitempty"`
}

type waiter struct {
	Owner   string          `json:"owner"`
	Holder  holdfast.Holder `json:"holder"`
	AskedAt time.Time       `json:"asked_at,omitzero"` // by the waiter's clock
}

type node struct {
	Node        string         `json:"node"`
	Owner       string         `json:"owner,omitempty"`
	Token       holdfast.Token `json:"token,omitempty"`
	RemainingMS int64          `json:"remaining_ms"`
	Waiting     int            `json:"waiting"`
	Error       string         `json:"error,omitempty"`
}

func newLock(st holdfast.Status) lock {
	l := lock{
		Name: st.Key, Held: st.Held, Unknown: unknown(st), Holder: st.Holder, Owner: st.Owner, Token: st.Token, AskedAt: st.Since,
		RemainingMS: millis(st.Remaining), Waiting: st.Waiters,
	}
	for _, n := range st.Nodes {
		view := node{Node: n.Node, Owner: n.Owner, Token: holdfast.Token(n.Token), RemainingMS: millis(n.Remaining), Waiting: n.Waiters}
		if n.Err != nil {
			view.Error = n.Err.Error()
		}
		l.Nodes = append(l.Nodes, view)
	}
	return l
}

func millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

func (a *app) showCommand() *cobra.Command {
	var ask bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Say who holds a lock, and what each node knows about it",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wantName(args, "")
			if err != nil {
				return err
			}
			return a.show(name, ask)
		},
		ValidArgsFunction: a.completeNames,
	}
	a.outputFlag(cmd)
	cmd.Flags().BoolVarP(&ask, "exit-code", "e", false, "print nothing, and say by the exit code whether the lock is held: 0 yes, 1 no")
	return cmd
}

// show says who holds a lock, or, for one who only asks, whether anybody does.
func (a *app) show(name string, ask bool) error {
	ctx, stop := interruptible()
	defer stop()
	client, err := a.looker(ctx)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	defer client.Close()
	st, asked := client.Inspect(ctx, name)
	if asked != nil && !(errors.Is(asked, holdfast.ErrUnavailable) && unknown(st)) {
		return interruptedBy(ctx, asked)
	}
	if ask {
		if asked == nil && !st.Held {
			a.code = exitcode.No
		}
		return interruptedBy(ctx, asked)
	}
	var queue []driver.Waiter
	if asked == nil && st.Waiters > 0 {
		if queue, err = client.Queue(ctx, name, queueShown); err != nil {
			a.log.Warn("who waits is not known: " + explain(err))
		}
	}
	if err := a.writeStatus(st, queue); err != nil {
		return err
	}
	return interruptedBy(ctx, asked) // what the nodes that are left know has been shown
}

// queueShown is how many waiters are shown.
const queueShown = 20

func (a *app) writeStatus(st holdfast.Status, queue []driver.Waiter) error {
	if a.output == "json" {
		l := newLock(st)
		for _, w := range queue {
			l.Queue = append(l.Queue, waiter{w.Owner, w.Holder, w.Since})
		}
		return a.writeJSON(l)
	}
	if err := a.writeTable(append(describe(st), queueRows(queue)...)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.io.Out); err != nil {
		return wrote(err)
	}
	return a.writeTable(nodeRows(st))
}

func queueRows(queue []driver.Waiter) (rows [][]string) {
	for i, w := range queue {
		text := w.Holder.String()
		if !w.Since.IsZero() {
			text += ", asked " + short(max(time.Since(w.Since), 0)) + " ago"
		}
		rows = append(rows, []string{fmt.Sprintf("%d. waits", i+1), text})
	}
	return rows
}

func describe(st holdfast.Status) [][]string {
	rows := [][]string{{"name", st.Key}, {"state", state(st)}}
	if st.Held {
		rows = append(rows, []string{"holder", holderText(st)}, []string{"owner", st.Owner})
		if st.Token != 0 {
			rows = append(rows, []string{"token", tokenText(st.Token)})
		}
		if !st.Since.IsZero() {
			rows = append(rows, []string{"asked", age(st) + " ago, by the holder's clock"})
		}
		left := short(st.Remaining)
		if st.Remaining >= 0 {
			left += " left"
		}
		rows = append(rows, []string{"lease", left})
	}
	return append(rows, []string{"waiting", strconv.Itoa(st.Waiters)})
}

func nodeRows(st holdfast.Status) [][]string {
	rows := [][]string{{"NODE", "OWNER", "TOKEN", "LEFT", "WAITING", "ERROR"}}
	for _, n := range st.Nodes {
		row := []string{n.Node, n.Owner, tokenText(holdfast.Token(n.Token)), "", strconv.Itoa(n.Waiters), ""}
		if n.Owner != "" {
			row[3] = short(n.Remaining)
		}
		if n.Err != nil {
			row[4], row[5] = "", n.Err.Error()
		}
		rows = append(rows, row)
	}
	return rows
}

func state(st holdfast.Status) string {
	switch {
	case st.Held:
		return "held"
	case unknown(st):
		return "unknown"
	}
	return "free"
}

// unknown says that too few nodes have answered.
func unknown(st holdfast.Status) bool {
	silent := 0
	for _, n := range st.Nodes {
		if n.Err != nil {
			silent++
		}
	}
	return 2*silent >= len(st.Nodes) && silent > 0
}

// holderText is who holds a lock. Who has neither name nor token is none of our clients.
func holderText(st holdfast.Status) string {
	if st.Holder == (holdfast.Holder{}) && st.Token == 0 {
		return "another library"
	}
	return st.Holder.String()
}

func age(st holdfast.Status) string { return short(max(time.Since(st.Since), 0)) }

func tokenText(t holdfast.Token) string {
	if t == 0 {
		return ""
	}
	return strconv.FormatInt(int64(t), 10)
}

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held or waited for",
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := wantName(append(args, "")[:max(len(args), 1)], "")
			if err != nil {
				return err
			}
			return a.list(prefix)
		},
	}
	a.outputFlag(cmd)
	return cmd
}

func (a *app) list(prefix string) error {
	ctx, stop := interruptible()
	defer stop()
	client, err := a.looker(ctx)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	defer client.Close()
	locks := []lock{}
	rows := [][]string{{"NAME", "STATE", "HOLDER", "TOKEN", "ASKED", "LEFT", "WAITING"}}
	var asked error
	for st, err := range client.List(ctx, prefix) {
		if err != nil {
			asked = err
			break
		}
		locks = append(locks, newLock(st))
		rows = append(rows, listRow(st))
	}
	switch {
	case asked != nil && len(locks) == 0:
	case a.output == "json":
		err = a.writeJSON(locks)
	default:
		err = a.writeTable(rows)
	}
	if err != nil {
		return err
	}
	return interruptedBy(ctx, asked) // of a list that is cut short, what is known has been shown
}

func listRow(st holdfast.Status) []string {
	row := []string{st.Key, state(st), "", "", "", "", strconv.Itoa(st.Waiters)}
	if st.Held {
		row[2], row[3], row[5] = holderText(st), tokenText(st.Token), short(st.Remaining)
		if !st.Since.IsZero() {
			row[4] = age(st) + " ago"
		}
	}
	return row
}

// completeNames offers the locks that are held, for the shell's completion.
func (a *app) completeNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.prepare(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.quiet = true
	ctx, stop := interruptible()
	defer stop()
	client, err := a.looker(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer client.Close()
	var names []string
	for st, err := range client.List(ctx, prefix) {
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names = append(names, st.Key)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
