//go:build !linux

package sqlite

import "math"

// network is the network file system that the folder is on; here nobody can tell.
func network(string) string { return "" }

// disk is how much room there is, and what a file system is that may be one of a network; here nobody can tell.
func disk(string) (free uint64, kind string) { return math.MaxUint64, "" }

// orphaned returns the ids of the processes that have a file of path open that was removed; here nobody can tell.
func orphaned(string) []string { return nil }
