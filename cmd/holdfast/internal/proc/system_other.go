//go:build unix && !linux

package proc

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Missing describes what this system cannot do.
const Missing = "processes that leave the command's group are not seen, and with --no-guard the command outlives a holdfast that is killed"

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func becomeReaper() {}

func selfPath() string {
	path, _ := os.Executable() // only the guard and terminals need it, and report it
	return path
}

func applyName() {}

func hasNoChild() bool { return true } // none are seen

func listChildren() []Process { return nil }

func listProcesses() []Process { return nil }

func isGroupAlive(group int) bool { return !isGone(unix.Kill(-group, 0)) }

// Name returns "", because this system does not show processes.
func Name(int) string { return "" }

func toNiceness(priority int) int { return priority }
