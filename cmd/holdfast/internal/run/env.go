package run

import (
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// EnvPrefix begins the variables that tell the command about its lock.
const EnvPrefix = "HOLDFAST_LOCK_"

// private begins the variables that the command does not inherit: those of an outer
// run, for with two of a name most programs would see the outer one, and where this
// run reports to, for a run inside would report there as well.
var private = []string{EnvPrefix, "HOLDFAST_STATUS_FILE=", "HOLDFAST_STATUS_FD=", "HOLDFAST_TEXTFILE=", "NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="}

// around yields owner and name of the leases of the runs that this process is inside of.
// Names have no control characters, and owners no spaces.
func around() iter.Seq2[string, string] {
	return func(yield func(owner, name string) bool) {
		for lease := range strings.SplitSeq(os.Getenv(EnvPrefix+"AROUND"), "\t") {
			if owner, name, ok := strings.Cut(lease, " "); ok && !yield(owner, name) {
				return
			}
		}
	}
}

// environment is that of the command.
func (p *Plan) environment(lease *holdfast.Lease) []string {
	var env []string
	for _, v := range os.Environ() {
		secret := p.Secret && strings.HasPrefix(v, "HOLDFAST_BACKEND=")
		if !secret && !slices.ContainsFunc(private, func(p string) bool { return strings.HasPrefix(v, p) }) {
			env = append(env, v)
		}
	}
	if lease == nil {
		return env
	}
	return append(env,
		EnvPrefix+"HELD=1",
		EnvPrefix+"NAME="+lease.Key(),
		EnvPrefix+"TOKEN="+strconv.FormatInt(int64(lease.Token()), 10),
		EnvPrefix+"OWNER="+lease.Owner(),
		EnvPrefix+"AROUND="+lease.Owner()+" "+lease.Key()+"\t"+os.Getenv(EnvPrefix+"AROUND"),
		EnvPrefix+"TTL_MS="+strconv.FormatInt(p.TTL.Milliseconds(), 10),
		EnvPrefix+"BACKEND="+p.Backend, // the scheme only: the rest may hold a password
	)
}
