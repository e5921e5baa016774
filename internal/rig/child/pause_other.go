//go:build !unix

package child

import "os"

var stop, resume os.Signal // there are none
