//go:build !unix

package child

import "os"

var stop, resume os.Signal // this system has none
