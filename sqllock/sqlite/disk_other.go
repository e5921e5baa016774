//go:build !linux

package sqlite

import "math"

// networkOf returns "": this system does not tell.
func networkOf(string) string { return "" }

// layerOf returns "": this system does not tell.
func layerOf(string) string { return "" }

// diskSpace returns no limit: this system does not tell the free space or the kind of the file system.
func diskSpace(string) (free uint64, kind string) { return math.MaxUint64, "" }

// orphanIDs returns nil: this system does not tell which processes have a file open.
func orphanIDs(string) []string { return nil }
