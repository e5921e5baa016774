//go:build !linux

package report

// isMounted returns false, because this system does not show mounts. The attempt to replace the file then
// fails.
func isMounted(string) bool { return false }
