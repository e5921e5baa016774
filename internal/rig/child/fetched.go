package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrNotFetched is returned by Fetched.
var ErrNotFetched = errors.New("not fetched: call tools/servers")

// Fetched is the program of a server that tools/servers fetches, by its name there. The error matches ErrNotFetched where it is
// missing.
func Fetched(name string) (program string, err error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "holdfast-servers", name)
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("no server %s: %w (%s)", name, ErrNotFetched, program)
	}
	return program, nil
}

// Required says whether a server that was not fetched fails a test, as in continuous integration, and does not skip it.
func Required() bool { return os.Getenv("HOLDFAST_SERVERS_REQUIRED") != "" }
