package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// The priority is: command line, variables, config file. A flag that excludes another also excludes it in
// lower sources.
func TestSettingsFollowSourcePriority(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("# of this host\n\nttl = 11s\nmargin=1s\nwait = 5m\nkill-after = 3s # at most\nbackend = redis://:s3cret@h\n"+
		"command = 'echo #1 \"a\"' # not run\nnote = it's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOLDFAST_CONFIG", file)
	t.Setenv("HOLDFAST_TTL", "12s")
	t.Setenv("HOLDFAST_NO_WAIT", "true")
	t.Setenv("HOLDFAST_MARGIN", "2s")
	code, out, log := call("config", "--margin", "3s")
	if code != exitcode.OK || log != "" {
		t.Fatalf("exit code %d, %q", code, log)
	}
	rows := make(map[string]string)
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		rows[fields[0]] = strings.Join(fields[1:], " ")
	}
	for flag, want := range map[string]string{
		"ttl": "12s HOLDFAST_TTL", "margin": "3s --margin", "kill-after": "3s " + file + ":6", "no-wait": "true HOLDFAST_NO_WAIT",
		"wait": "no limit default", "backend": "redis://:***@h " + file + ":7", "renew": "ttl/3 default",
		"command": `echo #1 "a" ` + file + ":8", "note": "it's " + file + ":9",
	} {
		if rows[flag] != want {
			t.Errorf("%s: %q, want %q", flag, rows[flag], want)
		}
	}
}

// The sets have several nodes each, and no password is shown.
func TestConfigFileNamesSeveralSets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	const lines = "backend = a=redis://:s3cret@h1\nbackend = a=redis://:s3cret@h2\n# another\nbackend = b=etcd://e1,e2\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, log := call("config", "--config", file)
	if want := "a=redis://:***@h1 a=redis://:***@h2 b=etcd://e1,e2"; code != exitcode.OK || !strings.Contains(out, want) || strings.Contains(out+log, "s3cret") {
		t.Errorf("exit code %d, %s%s, want %s", code, out, log, want)
	}
}

// No form of a backend, even an unreadable one, reveals a possible password.
func TestConfigHidesSecrets(t *testing.T) {
	for _, backend := range []string{
		"u:s3cret@h:6379", "redis://h?pasword=s3cret", "host=h user=u password=s3cret",
		"host=h password = 's3cret too'", "u:my s3cret@h", "redis://u:s3cret@h",
	} {
		for _, format := range []string{"table", "json"} {
			code, out, log := call("config", "-b", backend, "-o", format)
			if code != exitcode.OK || strings.Contains(out+log, "s3cret") || !strings.Contains(out, "***") {
				t.Errorf("%s: exit code %d, %s%s", backend, code, out, log)
			}
		}
	}
}

// A misspelled variable is reported. A variable of another program is not.
func TestUnknownVariablesAreReported(t *testing.T) {
	t.Setenv("HOLDFAST_TLL", "5s")
	t.Setenv("HOLDFAST_LOCK_NAME", "outer")
	t.Setenv("HOLDFAST_VERSION", "v0.1.0")
	t.Setenv("HOLDFAST_REDIS_PORT_6379_TCP_ADDR", "10.0.0.1")
	t.Setenv("HOLDFAST_SERVICE_HOST", "10.0.0.1")
	t.Setenv("HOLDFAST_EMPTY", "")
	const want = "holdfast: the variable HOLDFAST_TLL sets nothing; did you mean HOLDFAST_TTL?\n"
	if code, _, log := call("version"); code != exitcode.OK || log != want {
		t.Errorf("exit code %d, %q, want %q", code, log, want)
	}
	t.Setenv("HOLDFAST_TLL", "")
	t.Setenv("HOLDFAST_URL", "redis://h")
	if _, _, log := call("version"); !strings.Contains(log, "HOLDFAST_URL sets nothing; see holdfast config --help") {
		t.Errorf("for an unknown name: %q", log)
	}
	if _, _, log := call("version", "-q"); log != "" {
		t.Errorf("with -q: %q", log)
	}
}

func TestConfigFileIsReadOrRejected(t *testing.T) {
	for text, want := range map[string]string{
		"ttl 5s":                ":1: write a flag without dashes",
		"# x\nno-such-flag = 1": ":2: no command has a flag --no-such-flag",
		"ttl = 5s\n\nttl = 6s":  ":3: ttl is set in line 1 already",
		"backend = a=redis://h\nbackend = redis://i": "some URLs of the backend have a name",
		"ttl = soon":                                      `:1: ttl="soon": "soon" is not a duration`,
		"quiet = perhaps":                                 `:1: quiet="perhaps": give true or false`,
		"help = true":                                     "no command has a flag --help",
		"# x\nlog-format = xml":                           `:2: log-format "xml" is neither text nor json`,
		"\nbackend-file = no-such-file":                   ":2: backend-file: open no-such-file",
		"backend = redis://h:99999":                       ":1: backend: redis: invalid argument: the port of host 1 of 1 is not from 1 to 65535",
		"backend = redis://h # one\nx=":                   ":2: no command has a flag --x",
		"backend = redis://h#one":                         ":1: backend: redis: invalid argument: ",
		"no-guard = on\nnote = 'a":                        ":2: note: the value begins with a quote and does not end with one",
		`note = "a" b`:                                    ":1: note: only a comment may follow the closing quote",
		"guard = true\nno-guard = true":                   ":1: guard and ",
		"backend = r://a\nbackend-file = b":               ":2: backend-file contradict each other",
		"backend = redlock://h,i,j?maxttl=10s\nttl = 30s": ":2: ttl 30s: too long",
	} {
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, log := call("run", "--config", file, "job", "--", "true"); code != exitcode.Usage || !strings.Contains(log, want) {
			t.Errorf("%q: exit code %d, %q, want %q", text, code, log, want)
		}
	}
	if code, _, log := call("doctor", "-b", "redis://h:99999"); code != exitcode.Usage || !strings.Contains(log, "holdfast: --backend: redis: invalid argument: the port") {
		t.Errorf("doctor: exit code %d, %q", code, log)
	}
	if code, _, log := call("show", "--config", "no-such-file", "job"); code != exitcode.Usage || !strings.Contains(log, "no-such-file") {
		t.Errorf("exit code %d, %q", code, log)
	}
}
