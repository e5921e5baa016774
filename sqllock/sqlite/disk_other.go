//go:build !linux

package sqlite

import "math"

// networkOf returns "", because this system does not report the file system.
func networkOf(string) string { return "" }

// layerOf returns "", because this system does not report the file system.
func layerOf(string) string { return "" }

// diskSpace returns no limit, because this system reports neither the free space nor the file system.
func diskSpace(string) (free uint64, kind string) { return math.MaxUint64, "" }

// orphanIDs returns nil, because this system does not report which processes have a file open.
func orphanIDs(string) []string { return nil }
