// Package force takes a lock away from its holder, and records who did that and why.
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

// Record describes a lock that was taken away, for the log that is kept.
type Record struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	Lock   view.Lock `json:"lock"` // as it was before
	// Warning describes how the old holder may come back; empty if it cannot.
	Warning string `json:"warning,omitempty"`
}

// Release takes the lock away from the holder that st shows, and from no later one, and tells
// it by whom and for what reason. It blocks for two answers of the service. An error with the code exitcode.No says that this
// holder has gone by itself, and that nothing was done.
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

// operator names the user of this program and the host.
func operator() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + host
}
