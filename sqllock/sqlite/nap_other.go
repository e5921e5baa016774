//go:build !linux

package sqlite

import "time"

func napFor(d time.Duration) { time.Sleep(d) }
