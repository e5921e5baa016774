//go:build !unix

package sqllock_test

import (
	"errors"
	"os"
)

const (
	flockWait = iota
	flockTry
	flockEnd
)

func flock(*os.File, int) error { return errors.ErrUnsupported }
