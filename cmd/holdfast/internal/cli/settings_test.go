package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// TestSettingsGoByTheirSource holds the order: the command line, variables, the config
// file; and that a flag which excludes another does so for those that come later.
func TestSettingsGoByTheirSource(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("# of this host\n\nttl = 11s\nmargin=1s\nwait = 5m\nkill-after = 3s\nbackend = redis://:s3cret@h\n"), 0o600); err != nil {
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
		"wait": "default", "backend": "redis://:***@h " + file + ":7", "renew": "default",
	} {
		if rows[flag] != want {
			t.Errorf("%s: %q, want %q", flag, rows[flag], want)
		}
	}
}

// TestAConfigFileNamesSeveralSets, each with several nodes, and shows no password of them.
func TestAConfigFileNamesSeveralSets(t *testing.T) {
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

func TestConfigFileIsReadOrRefused(t *testing.T) {
	for text, want := range map[string]string{
		"ttl 5s":                ":1: write a flag without dashes",
		"# x\nno-such-flag = 1": ":2: no command has a flag --no-such-flag",
		"ttl = 5s\n\nttl = 6s":  ":3: ttl stands in line 1 already",
		"backend = a=redis://h\nbackend = redis://i": "some URLs of the backend have a name",
		"ttl = soon":                    `:1="soon": "soon" is no duration`,
		"quiet = perhaps":               `:1="perhaps": give true or false`,
		"help = true":                   "no command has a flag --help",
		"backend = a\nbackend-file = b": "contradict each other",
	} {
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, log := call("run", "--config", file, "job", "--", "true"); code != exitcode.Usage || !strings.Contains(log, want) {
			t.Errorf("%q: exit code %d, %q, want %q", text, code, log, want)
		}
	}
	if code, _, log := call("show", "--config", "no-such-file", "job"); code != exitcode.Usage || !strings.Contains(log, "no-such-file") {
		t.Errorf("exit code %d, %q", code, log)
	}
}
