package run

import (
	"os"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// EnvPrefix begins the variables that tell the command about its lock.
const EnvPrefix = "HOLDFAST_LOCK_"

// environment is that of the command. The variables of an outer run are taken
// out first: with two of a name, most programs would see the outer one.
func (p *Plan) environment(lease *holdfast.Lease) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, EnvPrefix) {
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
		EnvPrefix+"OWNER="+lease.ID(),
		EnvPrefix+"TTL_MS="+strconv.FormatInt(p.TTL.Milliseconds(), 10),
		EnvPrefix+"BACKEND="+p.Backend, // the scheme only: the rest may hold a password
	)
}
