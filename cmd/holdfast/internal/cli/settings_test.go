package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// TestMaskedShowsNoPartOfAPassword holds that what may be a password is not shown,
// whether the URL can be read or not.
func TestMaskedShowsNoPartOfAPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                                   "",
		"redis://h:1/2?bare=true":                            "redis://h:1/2?bare=true",
		"redis://app@h?passwordfile=/f":                      "redis://app@h?passwordfile=/f",
		"postgres://h/d?password=s3cret&x=1":                 "postgres://h/d?password=***&x=1",
		"redis://:s3cret@h:1/2":                              "redis://:***@h:1/2",
		"unix://u:s3cret@/run/redis.sock?db=1":               "unix://u:***@/run/redis.sock?db=1",
		"unix://u@/run/redis.sock?password=s3cret&db=1":      "unix://u@/run/redis.sock?password=***&db=1",
		"redlock://u:s3cret@a,b,c":                           "redlock://u:***@a,b,c",
		"redlock://u:s3cret@a,v:t3cret@b":                    "redlock://u:***@a,v:***@b",
		"redis://u:s3,cret@h":                                "redis://***@h",
		"redis://u:s3@cret@h":                                "redis://***@h",
		"redis://u:s3/cret@h":                                "redis://***@h",
		"redis://u:s3?cret@h":                                "redis://***@h",
		"redlock://u:x@a,s3,cret@b":                          "redlock://***@b",
		"redlock://u:x@a,u:s3:cret@b:1?x=1":                  "redlock://u:***@a,u:***@b:1?x=1",
		"postgres://u:s3cret@h/db?sslmode=require":           "postgres://u:***@h/db?sslmode=require",
		"postgres://h/db?user=u&password=s3cret&x=1":         "postgres://h/db?user=u&password=***&x=1",
		"postgres://h/db?sslpassword=s3cret&PASSWORD=s3cret": "postgres://h/db?sslpassword=***&PASSWORD=***",
		"redis://u:s3cret@h redis+sentinel://v:t@s,t/m?sentinel_password=s3cret redis://i": "redis://u:***@h redis+sentinel://v:***@s,t/m?sentinel_password=*** redis://i",
		"a=redis://u:s3cret@h -b=redlock://v:t3cret@i,j redis://k\n+c=etcd://l":            "a=redis://u:***@h -b=redlock://v:***@i,j redis://k\n+c=etcd://l",
		"redis://u:s3 redis://cret@h":   "redis://***@h",
		"redis://u:s3 a=redis://cret@h": "redis://***@h",
		"a=redis://h b=redis://:s3@i":   "a=redis://***@i",
	} {
		if got := masked(url); got != want {
			t.Errorf("%s is shown as %s, want %s", url, got, want)
		}
	}
}

func FuzzMasked(f *testing.F) {
	for _, text := range []string{
		"redis://u:%s@h", "redlock://u:%s@a,v:%s@b", "redis://u:,%s@h", "redis://u:/%s@h", "redlock://a,u:%s@b",
		"redis://u:x redis://%s@h", "a=redis://u: b=redis://%s@h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		login, _, ok := strings.Cut(pattern, "%s")
		if !ok || !strings.Contains(login, "://") || !strings.Contains(login[strings.Index(login, "://"):], ":") || strings.ContainsAny(login, "@") {
			return
		}
		url := login + "s3cret" + "@host"
		if user := login[strings.Index(login, "://")+3:]; strings.Contains(user, ":") && strings.Contains(masked(url), "s3cret") {
			t.Errorf("%s is shown as %s", url, masked(url))
		}
	})
}

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

func TestConfigFileIsReadOrRefused(t *testing.T) {
	for text, want := range map[string]string{
		"ttl 5s":                        ":1: write a flag without dashes",
		"# x\nno-such-flag = 1":         ":2: no command has a flag --no-such-flag",
		"ttl = 5s\n\nttl = 6s":          ":3: ttl stands in line 1 already",
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
