package driver

import (
	"context"
	"log/slog"
)

// LoggerOrDefault returns l. For nil it returns a logger that passes warnings and errors to slog's default
// logger, looked up when each line is written.
func LoggerOrDefault(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(defaultWarnings{func() slog.Handler { return slog.Default().Handler() }})
	}
	return l
}

// defaultWarnings passes warnings and errors to the handler that target returns.
type defaultWarnings struct{ target func() slog.Handler }

func (h defaultWarnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.target().Enabled(ctx, level)
}

func (h defaultWarnings) Handle(ctx context.Context, r slog.Record) error {
	return h.target().Handle(ctx, r)
}

func (h defaultWarnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return defaultWarnings{func() slog.Handler { return h.target().WithAttrs(attrs) }}
}

func (h defaultWarnings) WithGroup(name string) slog.Handler {
	return defaultWarnings{func() slog.Handler { return h.target().WithGroup(name) }}
}
