//go:build !unix

package pgproc

import (
	"errors"
	"syscall"
)

// Pause and Resume return errors.ErrUnsupported: this system has no signal for them.
func (*Server) Pause() error { return errors.ErrUnsupported }

// Resume returns errors.ErrUnsupported.
func (*Server) Resume() error { return errors.ErrUnsupported }

// unprivilegedUser keeps the user of this process for the server.
func unprivilegedUser(string) (*syscall.SysProcAttr, error) { return &syscall.SysProcAttr{}, nil }
