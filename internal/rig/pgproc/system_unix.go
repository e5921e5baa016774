//go:build unix

package pgproc

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// Pause stops all processes of the server, whose connections stay open. Resume continues them. Both need
// Linux.
func (s *Server) Pause() error { return s.signalAll(s.process.Pause, syscall.SIGSTOP) }

// Resume undoes Pause.
func (s *Server) Resume() error { return s.signalAll(s.process.Resume, syscall.SIGCONT) }

// signalAll applies first to the first process of the server, and then sends sig to its children, each of
// which is a process group. The first process comes first, because it starts no new children while it is
// stopped.
func (s *Server) signalAll(first func() error, sig syscall.Signal) error {
	if err := first(); err != nil {
		return err
	}
	pid := s.Pid()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(child); err == nil {
			syscall.Kill(n, sig) // an error means that it has ended
		}
	}
	return err
}

// unprivilegedUser returns the user for the server, and makes that user the owner of dir.
func unprivilegedUser(dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{}
	if os.Getuid() != 0 {
		return attr, nil
	}
	who, err := user.Lookup("postgres")
	if err != nil {
		who, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("root needs another user to run as: %w", err)
	}
	uid, err1 := strconv.ParseUint(who.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(who.Gid, 10, 32)
	if err := errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, nil
}
