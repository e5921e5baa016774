package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// plainError replaces strconv's error for a flag of kind by one that names the allowed values.
func plainError(kind string, err error) error {
	switch {
	case kind == "bool":
		return errors.New("give true or false")
	case strings.HasPrefix(kind, "int"):
		return errors.New("give a whole number")
	}
	return err
}

// duration is a flag value: Go's notation, or a number of seconds.
type duration time.Duration

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if seconds, bad := strconv.ParseFloat(s, 64); bad == nil {
		v, err = time.Duration(seconds*float64(time.Second)), nil
		if seconds < -1e9 || seconds > 1e9 || seconds != seconds {
			err = strconv.ErrRange
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a duration; write 90s, 1m30s, 250ms or a number of seconds", s)
	case v < 0:
		return fmt.Errorf("%q is negative", s)
	}
	*d = duration(v)
	return nil
}

// String implements pflag.Value.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }

// positiveDuration is a duration that must be positive.
type positiveDuration struct{ duration }

// Set implements pflag.Value.
func (d *positiveDuration) Set(s string) error {
	if err := d.duration.Set(s); err != nil {
		return err
	}
	if d.duration == 0 {
		return fmt.Errorf("%q is zero; give a time above 0", s)
	}
	return nil
}

// optionalDuration is a duration for which 0 differs from unset.
type optionalDuration struct {
	duration
	set bool
}

// Set implements pflag.Value.
func (o *optionalDuration) Set(s string) error {
	o.set = true
	return o.duration.Set(s)
}

// patience is the value of --wait: unset means no limit, and 0 means no wait.
type patience struct{ optionalDuration }

// isNone reports whether the command does not wait. It rejects both flags on the command line. In variables or
// lines of a file, --no-wait wins.
func (p *patience) isNone(noWait bool, given func(string) bool) (bool, error) {
	if noWait && p.set && p.duration > 0 && given("no-wait") && given("wait") {
		return false, exitcode.Usagef("--no-wait and --wait %v contradict each other; give one of them", time.Duration(p.duration))
	}
	return noWait || p.set && p.duration == 0, nil
}

// code is a flag value: an exit code.
type code exitcode.Code

// Set implements pflag.Value.
func (c *code) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 255 {
		return fmt.Errorf("%q is not an exit code; give a number from 0 to 255", s)
	}
	*c = code(n)
	return nil
}

// String implements pflag.Value.
func (c *code) String() string { return strconv.Itoa(int(*c)) }

// Type implements pflag.Value.
func (c *code) Type() string { return "code" }

// choice is a flag value: one of several words.
type choice struct {
	value string
	words []string
}

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if slices.Contains(c.words, s) {
		c.value = s
		return nil
	}
	return fmt.Errorf("%q is none of %s", s, strings.Join(c.words, ", "))
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return "word" }
