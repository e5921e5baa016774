package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNotFetched is returned by Fetched.
var ErrNotFetched = errors.New("not fetched: call tools/servers")

// Fetched returns the path of a server program that tools/servers has fetched under this name. If it is
// missing, the error matches ErrNotFetched.
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

// Required reports whether a missing server fails a test, as in continuous integration, or skips it.
func Required() bool { return os.Getenv("HOLDFAST_SERVERS_REQUIRED") != "" }

// Find returns the program that an environment variable names, by its path or its name in PATH, or else the
// first of names that exists on this machine. It resolves links, because another user may be able to read the
// program, but not root's cache folder, where tools/servers puts a link to it. named reports whether the
// variable was set.
func Find(variable string, names ...string) (program string, named bool, err error) {
	if name := os.Getenv(variable); name != "" {
		if program, err = exec.LookPath(name); err == nil {
			program, err = filepath.EvalSymlinks(program)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", variable, err)
		}
		return program, true, err
	}
	err = exec.ErrNotFound
	for _, name := range names {
		if program, err = exec.LookPath(name); err == nil {
			break
		}
	}
	return program, false, err
}
