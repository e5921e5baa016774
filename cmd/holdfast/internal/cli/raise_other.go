//go:build !unix

package cli

import "syscall"

func raise(syscall.Signal) {}
