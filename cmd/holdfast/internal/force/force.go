// Package force force-releases a lock, and records who did that and why.
package force

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// Record describes a force-release, for a permanent log.
type Record struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	Lock   view.Lock `json:"lock"` // its state before
	// Warning describes how the old holder may get the lock back; empty if it cannot.
	Warning string `json:"warning,omitempty"`
}

// Release force-releases the lock of the holder in st, and of no later holder, and tells the holder by whom
// and why. It blocks for two answers of the service. An error with the code exitcode.No means that the holder
// had already gone and nothing was done.
func Release(ctx context.Context, client *holdfast.Client, st holdfast.Status, reason string) (Record, error) {
	by := operator()
	err := client.ForceRelease(ctx, st.Key, st.Token, by+": "+reason)
	if errors.Is(err, holdfast.ErrLost) {
		return Record{}, exitcode.With(exitcode.No, fmt.Errorf("the holder of token %d has gone by itself; nothing was done", st.Token))
	}
	warning := ""
	switch {
	case errors.Is(err, holdfast.ErrUnconfirmed) && !errors.Is(err, holdfast.ErrUnavailable):
		warning = err.Error()
	case err != nil:
		return Record{}, err
	}
	return Record{Time: time.Now().UTC(), Action: "force-release", By: by, Reason: reason, Lock: view.NewLock(st, nil), Warning: warning}, nil
}

// operator returns the user of this program and the host.
func operator() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + host
}
