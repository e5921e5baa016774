// Package lines writes the log of the command: lines for people, or JSON.
package lines

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// New returns a log that writes to w, from level on, in the format text or json.
func New(w io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(escapingWriter{w}, &slog.HandlerOptions{Level: level, ReplaceAttr: formatAttr}))
	}
	return slog.New(&handler{w: w, level: level, mu: new(sync.Mutex)})
}

// escapingWriter escapes unprintable characters in whole JSON documents.
type escapingWriter struct{ io.Writer }

// Write implements io.Writer.
func (e escapingWriter) Write(document []byte) (int, error) {
	if _, err := e.Writer.Write(view.EscapeJSON(document)); err != nil {
		return 0, err
	}
	return len(document), nil
}

// handler writes "holdfast: message key=value".
type handler struct {
	level slog.Level

	mu *sync.Mutex // guards w
	w  io.Writer
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// Handle implements slog.Handler.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("holdfast: ")
	b.WriteString(view.Printable(r.Message))
	r.Attrs(func(a slog.Attr) bool { b.WriteString(attribute(a)); return true })
	b.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.w, b.String())
	return err
}

// WithAttrs implements slog.Handler. A reader of lines knows the command, so attributes are left out.
func (h *handler) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements slog.Handler. Groups are not used.
func (h *handler) WithGroup(string) slog.Handler { return h }

// formatAttr drops empty attributes, such as the cause of a healthy node, and formats durations with their
// unit.
func formatAttr(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Any() == nil:
		return slog.Attr{}
	case a.Value.Kind() == slog.KindDuration:
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}

func attribute(a slog.Attr) string {
	if a.Value.Any() == nil {
		return ""
	}
	if a.Value.Kind() == slog.KindTime {
		return fmt.Sprintf(" %s=%s", a.Key, a.Value.Time().Format("15:04:05.000"))
	}
	return fmt.Sprintf(" %s=%s", a.Key, view.Printable(fmt.Sprint(a.Value.Any())))
}
