package run

import (
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// EnvPrefix begins the variables that describe the command's lock.
const EnvPrefix = "HOLDFAST_LOCK_"

// privateVariables has the prefixes of variables that the command does not inherit. The variables of an outer run would
// hide the variables of this run in most programs, and an inner run would write to the same reports.
var privateVariables = []string{
	EnvPrefix, "HOLDFAST_STATUS_FILE=", "HOLDFAST_STATUS_FD=", "HOLDFAST_TEXTFILE=", "NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID=",
}

// outerRuns yields owner and name of the leases of the runs around this process. Names have no control
// characters, and owners no spaces.
func outerRuns() iter.Seq2[string, string] {
	return func(yield func(owner, name string) bool) {
		for lease := range strings.SplitSeq(os.Getenv(EnvPrefix+"AROUND"), "\t") {
			if owner, name, ok := strings.Cut(lease, " "); ok && !yield(owner, name) {
				return
			}
		}
	}
}

// environment returns the environment of the command.
func (p *Plan) environment(held Held) []string {
	var env []string
	for _, v := range os.Environ() {
		secret := p.Secret && strings.HasPrefix(v, "HOLDFAST_BACKEND=")
		if !secret && !slices.ContainsFunc(privateVariables, func(p string) bool { return strings.HasPrefix(v, p) }) {
			env = append(env, v)
		}
	}
	if held == nil {
		return env
	}
	env = append(env,
		EnvPrefix+"HELD=1",
		EnvPrefix+"TTL_MS="+strconv.FormatInt(p.TTL.Milliseconds(), 10),
		EnvPrefix+"BACKEND="+p.Backend, // only the scheme: the rest may have a password
	)
	around := os.Getenv(EnvPrefix + "AROUND")
	for _, lease := range held.All() {
		around = lease.Owner() + " " + lease.Key() + "\t" + around
	}
	env = append(env, EnvPrefix+"AROUND="+around)
	if len(p.Names) > 1 {
		env = append(env, EnvPrefix+"COUNT="+strconv.Itoa(len(p.Names)))
	}
	if p.Slots > 0 {
		env = append(env, EnvPrefix+"SLOT="+strconv.Itoa(held.All()[0].Slot()))
	}
	for i, name := range p.Names {
		all, number := held.All(), p.variableSuffix(i)
		lease := all[0]
		if p.hasLocks() {
			lease = all[slices.IndexFunc(all, func(l *holdfast.Lease) bool { return l.Key() == name })]
		}
		env = append(env,
			EnvPrefix+"NAME"+number+"="+lease.Key(),
			EnvPrefix+"TOKEN"+number+"="+strconv.FormatInt(int64(lease.Token()), 10),
			EnvPrefix+"OWNER"+number+"="+lease.Owner(),
		)
	}
	return env
}

// variableSuffix returns the end of the variables of the i-th lock, from 0. With several locks each variable
// has one: a command that knows only one token would otherwise write it with the data of all locks.
func (p *Plan) variableSuffix(i int) string {
	if len(p.Names) == 1 {
		return ""
	}
	return "_" + strconv.Itoa(i+1)
}

// Inside returns the leases of the run around this process, in the order of their names on the command line,
// or nil.
func Inside() (all []Lease) {
	numbers := []string{""}
	if count, err := strconv.Atoi(os.Getenv(EnvPrefix + "COUNT")); err == nil {
		numbers = nil
		for i := range min(count, len(os.Environ())) {
			numbers = append(numbers, "_"+strconv.Itoa(i+1))
		}
	}
	for _, number := range numbers {
		if name := os.Getenv(EnvPrefix + "NAME" + number); name != "" {
			token, _ := strconv.ParseInt(os.Getenv(EnvPrefix+"TOKEN"+number), 10, 64) // 0 is no token
			all = append(all, Lease{Name: name, Token: token, Owner: os.Getenv(EnvPrefix + "OWNER" + number)})
		}
	}
	return all
}
