//go:build !linux

package child

import "syscall"

func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
