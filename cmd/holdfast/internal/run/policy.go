package run

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Policy decides what happens to the command when its lease is lost.
type Policy struct {
	Signal syscall.Signal // the first signal
	Kill   bool           // KILL at once
	Warn   bool           // only warn
}

// Term is the default policy.
var Term = Policy{Signal: syscall.SIGTERM}

// Set reads term, kill, warn or signal=NAME.
func (p *Policy) Set(s string) error {
	name, isSignal := strings.CutPrefix(s, "signal=")
	switch {
	case s == "term":
		*p = Term
	case s == "kill":
		*p = Policy{Signal: syscall.SIGKILL, Kill: true}
	case s == "warn":
		*p = Policy{Warn: true}
	case isSignal:
		sig, err := signalByName(name)
		if err != nil {
			return err
		}
		*p = Policy{Signal: sig}
	default:
		return fmt.Errorf("%q is none of term, kill, warn and signal=NAME", s)
	}
	return nil
}

// String returns the text that Set reads.
func (p *Policy) String() string {
	switch {
	case p.Warn:
		return "warn"
	case p.Kill:
		return "kill"
	case p.Signal == syscall.SIGTERM:
		return "term"
	}
	return "signal=" + signalName(p.Signal)
}

// Type returns the name of the value in the help.
func (p *Policy) Type() string { return "policy" }

func signalByName(name string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	want := "SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for sig, known := range signalNames {
		if known == want {
			return sig, nil
		}
	}
	known := make([]string, 0, len(signalNames))
	for _, n := range signalNames {
		known = append(known, strings.TrimPrefix(n, "SIG"))
	}
	slices.Sort(known)
	return 0, fmt.Errorf("%q is not a signal; known are the numbers and %s", name, strings.Join(known, " "))
}

func signalName(s syscall.Signal) string {
	if name, ok := signalNames[s]; ok {
		return name
	}
	return strconv.Itoa(int(s))
}
