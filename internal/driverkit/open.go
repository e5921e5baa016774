package driverkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// OpenChecked returns d, unless err is set or the first check of the service finds a mistake in the
// configuration. A service that is down is not a mistake.
func OpenChecked[D io.Closer](ctx context.Context, service string, d D, err error, look func(context.Context) error) (D, error) {
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, pace.OpenTime())
		defer cancel()
		if err = look(ctx); !isMistake(err) {
			if log, ok := ctx.Value(warnings{}).(*slog.Logger); ok && err != nil {
				log.Warn("the service cannot be used now; calls wait for it", "service", service, "cause", err)
			}
			return d, nil
		}
		d.Close()
	}
	var none D
	return none, fmt.Errorf("%s: %w", service, err)
}

// warnings is the key under which a context has the logger for the warning of OpenChecked.
type warnings struct{}

// WithWarnings returns a context for OpenChecked. If the caller accepts a service that is down, OpenChecked
// then warns the logger of opts about it. Otherwise the first call returns the error, without a warning.
func WithWarnings(ctx context.Context, opts *driver.OpenOptions) context.Context {
	if !opts.AllowDown {
		return ctx
	}
	return context.WithValue(ctx, warnings{}, driver.LoggerOrDefault(opts.Logger))
}

// isMistake reports whether somebody has to change the configuration: err is an error that lasts, or all
// members failed because of certificates. As certificates may be replaced, they end no wait.
func isMistake(err error) bool {
	down, ok := errors.AsType[*driver.UnavailableError](err)
	return IsPermanent(err) || ok && len(down.Nodes) > 0 && !slices.ContainsFunc(down.Nodes, func(n driver.NodeError) bool {
		text := n.Err.Error()
		return !strings.Contains(text, "tls: ") && !strings.Contains(text, "x509: ")
	})
}
