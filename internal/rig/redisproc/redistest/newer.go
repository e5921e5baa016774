package redistest

import (
	"os"
	"path/filepath"
	"testing"
)

// Newer are the names of the servers that tools/servers fetches, in addition to the
// machine's own: Redis 8 and Valkey 8.
var Newer = []string{"redis8", "valkey8"}

// requiredVariable is set where a newer server that is missing fails a test, as in continuous integration.
const requiredVariable = "HOLDFAST_SERVERS_REQUIRED"

// Program is the program of a newer server, for redisproc.Options. Where it has not been fetched the test is skipped, as not
// every system has a way to it, or fails if HOLDFAST_SERVERS_REQUIRED is set.
func Program(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "holdfast-servers", name)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	stop := t.Skipf
	if os.Getenv(requiredVariable) != "" {
		stop = t.Fatalf
	}
	stop("no server %s: tools/servers fetches it (%s)", name, program)
	return ""
}
