//go:build !linux

package sqlite

import "math"

// networkOf returns the network file system that the folder is on; here nobody can tell.
func networkOf(string) string { return "" }

// diskSpace returns the free space, and the kind of the file system if it may have a network behind it; here neither is known.
func diskSpace(string) (free uint64, kind string) { return math.MaxUint64, "" }

// orphanIDs returns the ids of the processes that have a file of path open that was removed; here nobody can tell.
func orphanIDs(string) []string { return nil }
