package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
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
			row[i] = view.Printable(row[i])
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return wrote(w.Flush())
}
