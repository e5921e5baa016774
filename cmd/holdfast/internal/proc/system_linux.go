package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Missing describes what this system cannot do; empty: nothing.
const Missing = ""

// groupAttr makes the kernel kill the command when this process dies, and gives the command its own group.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// selfPath returns the path of this program, valid even if its file was moved or replaced.
func selfPath() string { return "/proc/self/exe" }

// applyName gives this process the name of its file; the kernel would show the name in selfPath.
func applyName() {
	if path, err := os.Executable(); err == nil {
		os.WriteFile("/proc/self/comm", []byte(path[strings.LastIndexByte(path, '/')+1:]), 0) // for people; ignore an error
	}
}

// becomeReaper makes this process the parent of orphaned descendants, so that none escapes unseen. It cannot
// fail on a kernel that Go supports.
func becomeReaper() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// toNiceness converts a priority from the kernel's form to the form for setpriority.
func toNiceness(priority int) int { return 20 - priority }

// hasNoChild reports whether this process has no child, not even a zombie. Then it need not read all processes
// of the machine.
func hasNoChild() bool {
	return errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD)
}

// listChildren returns the children of this process, without zombies.
func listChildren() []Process {
	if hasNoChild() {
		return nil
	}
	if _, err := os.Stat("/proc/thread-self/children"); err != nil { // a kernel without CONFIG_PROC_CHILDREN
		return slices.DeleteFunc(listProcesses(), func(p Process) bool { return p.parent != os.Getpid() })
	}
	threads, _ := os.ReadDir("/proc/self/task")
	var all []Process
	for _, thread := range threads { // each thread has the children that it started or inherited
		text, _ := os.ReadFile("/proc/self/task/" + thread.Name() + "/children") // the thread may have ended; another one has its children
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				if p, ok := readProcess(pid); ok {
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// listProcesses returns all processes in /proc that are not zombies.
func listProcesses() []Process {
	var all []Process
	eachProcess(func(p Process, alive bool) {
		if alive {
			all = append(all, p)
		}
	})
	return all
}

// eachProcess calls visit with each process that /proc shows; alive is false for a zombie.
func eachProcess(visit func(p Process, alive bool)) {
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, alive := readProcess(pid); p.PID != 0 {
			visit(p, alive)
		}
	}
}

func readProcess(pid int) (Process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false
	}
	return parseProcess(pid, stat)
}

// Name returns the name of a process from /proc, or "" if it is hidden or unprintable.
func Name(pid int) string {
	p, _ := readProcess(pid)
	if strings.ContainsFunc(p.Name, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return ""
	}
	return p.Name
}

// parseProcess parses /proc/PID/stat: "PID (name) state parent group …", where the name may contain any
// character. It reports whether the process is alive, that is, no zombie. Malformed text gives no process.
func parseProcess(pid int, stat []byte) (Process, bool) {
	open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || shut < open {
		return Process{}, false
	}
	fields := strings.Fields(string(stat[shut+1:]))
	if len(fields) < 3 {
		return Process{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	group, err2 := strconv.Atoi(fields[2])
	if err1 != nil || err2 != nil {
		return Process{}, false
	}
	p := Process{PID: pid, Name: string(stat[open+1 : shut]), group: group, parent: parent}
	return p, fields[0] != "Z" && fields[0] != "X"
}

// isGroupAlive reports whether a group has a member that is no zombie. A zombie stays for as long as its
// parent does not reap it.
func isGroupAlive(group int) bool {
	err := unix.Kill(-group, 0)
	return !isGone(err) && isGroupShown(group, err, eachProcess)
}

// isGroupShown reports whether a group has a living member among the processes that each visits; err is the
// answer of kill for the group. If /proc may hide processes, as with hidepid or systemd's ProtectProc, the
// answer of kill decides: a member that has changed its user is hidden.
func isGroupShown(group int, err error, each func(visit func(p Process, alive bool))) bool {
	var shown, living, whole bool
	each(func(p Process, alive bool) {
		whole = whole || p.PID == 1
		shown = shown || p.group == group
		living = living || p.group == group && alive
	})
	hidden := errors.Is(err, unix.EPERM) && !shown
	return living || hidden || !whole
}
