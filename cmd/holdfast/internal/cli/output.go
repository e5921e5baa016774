package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// writeJSON prints v on stdout, indented.
func (a *app) writeJSON(v any) error {
	e := json.NewEncoder(a.io.Out)
	e.SetIndent("", "  ")
	return wrote(e.Encode(v))
}

// line is v as one line of JSON. What this program writes about itself has nothing
// that JSON does not know.
func line(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(text, '\n')
}

// writeTable prints rows in columns.
func (a *app) writeTable(rows [][]string) error {
	w := tabwriter.NewWriter(a.io.Out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return wrote(w.Flush())
}

// printable keeps what others have put into a name from steering the terminal.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

// short rounds a duration to what a person wants to know.
func short(d time.Duration) string {
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
