package report

import "golang.org/x/sys/unix"

// isMounted reports whether the file at path is a mount, as in a container that got one file of its host:
// nothing can be renamed over it.
func isMounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
