package direct

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

// Opened returns d, unless it could not be made or the first look shows that it cannot work.
// A service that is down is no mistake.
func Opened[D io.Closer](ctx context.Context, service string, d D, err error, look func(context.Context) error) (D, error) {
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, pace.OpenTime())
		defer cancel()
		if err = look(ctx); !mistaken(err) {
			return d, nil
		}
		d.Close()
	}
	var none D
	return none, fmt.Errorf("%s: %w", service, err)
}

// mistaken says whether err is a mistake where a driver has just been opened: one that lasts,
// or that all members failed for want of fit certificates. As these may be replaced, they end
// no wait.
func mistaken(err error) bool {
	down, ok := errors.AsType[*driver.UnavailableError](err)
	return Lasts(err) || ok && len(down.Nodes) > 0 && !slices.ContainsFunc(down.Nodes, func(n driver.NodeError) bool {
		text := n.Err.Error()
		return !strings.Contains(text, "tls: ") && !strings.Contains(text, "x509: ")
	})
}
