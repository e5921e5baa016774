//go:build !linux

package sqlite

import "math"

// network is the network file system that the folder is on; here nobody can tell.
func network(string) string { return "" }

// disk returns the free space, and the kind of the file system if it may have a network behind it; here neither is known.
func disk(string) (free uint64, kind string) { return math.MaxUint64, "" }

// orphaned returns the ids of the processes that have a file of path open that was removed; here nobody can tell.
func orphaned(string) []string { return nil }
