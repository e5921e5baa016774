package driverkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// OpenChecked returns d, unless err is set or the first look at the service shows a mistake. A service that is down
// is no mistake.
func OpenChecked[D io.Closer](ctx context.Context, service string, d D, err error, look func(context.Context) error) (D, error) {
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, pace.OpenTime())
		defer cancel()
		if err = look(ctx); !isMistake(err) {
			return d, nil
		}
		d.Close()
	}
	var none D
	return none, fmt.Errorf("%s: %w", service, err)
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
