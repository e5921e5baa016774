package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// writeJSON prints v on stdout, indented.
func (a *app) writeJSON(v any) error {
	var document bytes.Buffer
	e := json.NewEncoder(&document)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := a.io.Out.Write(view.EscapeJSON(document.Bytes()))
	return outputError(err)
}

// jsonLine encodes v as one line of JSON. v cannot fail to encode.
func jsonLine(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(view.EscapeJSON(text), '\n')
}

// writeTable prints rows in columns.
func (a *app) writeTable(rows [][]string) error {
	t := &table{out: a.io.Out, rows: rows}
	return t.flush()
}

const (
	tableRows = 100                    // rows that are held back to measure the columns
	tableWait = 200 * time.Millisecond // time for which they are held back
	cellWide  = 48                     // in columns; a single longer cell shifts only its own row
	maxCell   = 128                    // in columns; bounds a column in which half of the cells are long
)

// table prints rows as they arrive. A column is as wide as its widest cell so far, up to cellWide. A wider
// cell shifts only its own row, unless at least half of the cells are wider.
type table struct {
	out    io.Writer
	widths []int
	rows   [][]string // not printed yet
	since  time.Time  // arrival of the first of them
}

// add adds a row, which is printed soon.
func (t *table) add(row []string) error {
	if len(t.rows) == 0 {
		t.since = time.Now()
	}
	if t.rows = append(t.rows, row); len(t.rows) < tableRows && time.Since(t.since) < tableWait {
		return nil
	}
	return t.flush()
}

// flush prints the rows that are held back.
func (t *table) flush() error {
	long := make(map[int][]int) // by column: widths of the cells above cellWide
	for _, row := range t.rows {
		for i := range row {
			row[i] = view.Printable(row[i])
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			if wide := ansi.StringWidth(row[i]); wide <= cellWide {
				t.widths[i] = max(t.widths[i], wide)
			} else if wide <= maxCell {
				long[i] = append(long[i], wide)
			}
		}
	}
	for i, all := range long {
		if 2*len(all) >= len(t.rows) {
			t.widths[i] = max(t.widths[i], slices.Max(all))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", max(t.widths[i]-ansi.StringWidth(cell), 0)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	t.rows = nil
	_, err := io.WriteString(t.out, b.String())
	return outputError(err)
}

// array prints a JSON array element by element, indented like writeJSON's output.
type array struct {
	out io.Writer
	n   int
}

// add prints an element.
func (j *array) add(v any) error {
	text, err := json.MarshalIndent(v, "  ", "  ")
	if err != nil {
		return err
	}
	start := ",\n  "
	if j.n++; j.n == 1 {
		start = "[\n  "
	}
	_, err = io.WriteString(j.out, start+string(view.EscapeJSON(text)))
	return outputError(err)
}

// flush ends the array.
func (j *array) flush() error {
	end := "\n]\n"
	if j.n == 0 {
		end = "[]\n"
	}
	_, err := io.WriteString(j.out, end)
	return outputError(err)
}
