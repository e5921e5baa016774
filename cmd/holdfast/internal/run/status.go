package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// Outcome is how a run ended.
type Outcome string

// The outcomes.
const (
	Ran         Outcome = "ran"         // the command ended by itself
	Busy        Outcome = "busy"        // somebody else holds the lock
	Lost        Outcome = "lost"        // the lease was lost, the command stopped
	Unavailable Outcome = "unavailable" // the backend could not be reached
	Signal      Outcome = "signal"      // a signal ended the wait
	Timeout     Outcome = "timeout"     // --max-runtime
	Failed      Outcome = "failed"      // anything else
)

// Status says how a run ended. Exit statuses can collide with those of the
// command; this cannot.
type Status struct {
	Outcome     Outcome          `json:"outcome"`
	ExitCode    exitcode.Code    `json:"exit_code"`
	ChildExit   *int             `json:"child_exit,omitempty"`   // the command's own code
	ChildSignal string           `json:"child_signal,omitempty"` // or the signal it died of
	Name        string           `json:"name"`
	Token       holdfast.Token   `json:"token,omitempty"`
	Owner       string           `json:"owner,omitempty"`
	Held        bool             `json:"held"` // whether the command ran under a lease
	WaitedMS    int64            `json:"waited_ms"`
	HeldMS      int64            `json:"held_ms"`
	Holder      *holdfast.Holder `json:"holder,omitempty"` // of a lock that was busy
	Error       string           `json:"error,omitempty"`
	EndedAt     time.Time        `json:"ended_at"`
}

// Reports are where a Status goes. The zero value writes nothing.
type Reports struct {
	Path string
	FD   int // 0: none
}

// Check finds out, before anything is locked, whether the reports can be written.
func (r Reports) Check() error {
	if r.FD != 0 {
		closeOnExec(r.FD) // it is not the command's
		if _, err := os.NewFile(uintptr(r.FD), "status").Stat(); err != nil {
			return exitcode.Usagef("--status-fd %d is not open: redirect it, as in %d>status.json", r.FD, r.FD)
		}
	}
	if r.Path == "" {
		return nil
	}
	f, err := r.temporary()
	if err != nil {
		return exitcode.Usagef("--status-file cannot be written: %w; name a file in a folder that exists and is yours", err)
	}
	f.Close()
	return os.Remove(f.Name())
}

func (r Reports) temporary() (*os.File, error) {
	if info, err := os.Stat(r.Path); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a folder", r.Path)
	}
	return os.CreateTemp(filepath.Dir(r.Path), "."+filepath.Base(r.Path)+".*")
}

// Write writes s to both places. A reader of the file sees the old text or the
// new one, never half of it.
func (r Reports) Write(s Status) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if r.FD != 0 {
		if _, err := os.NewFile(uintptr(r.FD), "status").Write(text); err != nil {
			return fmt.Errorf("--status-fd %d: %w", r.FD, err)
		}
	}
	if r.Path == "" {
		return nil
	}
	return r.replace(text)
}

func (r Reports) replace(text []byte) error {
	f, err := r.temporary()
	if err != nil {
		return fmt.Errorf("--status-file: %w", err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), r.Path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("--status-file: %w", err)
	}
	return nil
}
