package sqlite

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// networks maps file-system numbers of Linux to file systems that several machines can mount.
var networks = map[int64]string{
	0x6969: "NFS", 0x517B: "SMB", 0xFE534D42: "SMB", 0xFF534D42: "CIFS", 0x5346414F: "AFS", 0x6B414653: "AFS", 0x73757245: "Coda", 0x564C: "NCP",
	0x00C36400: "CephFS", 0x01161970: "GFS2", 0x7461636F: "OCFS2", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS",
}

// maybeRemoteFS are file systems that may be on a network.
var maybeRemoteFS = map[int64]string{0x65735546: "FUSE", 0x01021997: "9P"}

// layers are file systems that show each container its own files.
var layers = map[int64]string{0x794C7630: "overlayfs", 0x61756673: "aufs"}

// fileSystem returns the file-system number of a folder; 0: unknown.
func fileSystem(folder string) (kind int64, free uint64) {
	var s syscall.Statfs_t
	if syscall.Statfs(folder, &s) != nil {
		return 0, math.MaxUint64
	}
	return int64(s.Type) & 0xFFFFFFFF, s.Bavail * uint64(s.Bsize)
}

// networkOf returns the name of the folder's network file system; empty: none is known.
func networkOf(folder string) string {
	kind, _ := fileSystem(folder)
	return networks[kind]
}

// layerOf returns the name of the folder's file system if that belongs to one container; empty: it does not, or
// it is not known.
func layerOf(folder string) string {
	kind, _ := fileSystem(folder)
	return layers[kind]
}

// diskSpace returns the free space for this user, and the kind of the file system if it may be on a network.
func diskSpace(folder string) (free uint64, kind string) {
	n, free := fileSystem(folder)
	return free, maybeRemoteFS[n]
}

// orphanIDs returns the ids of the processes that have a removed file of path open, as far as this user may
// see them.
func orphanIDs(path string) (ids []string) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	all, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range all {
		name, err := os.Readlink(fd)
		name, gone := strings.CutSuffix(name, " (deleted)")
		if end, ours := strings.CutPrefix(name, path); err != nil || !gone || !ours || !slices.Contains(suffixes[:], end) {
			continue
		}
		if id := strings.Split(fd, "/")[2]; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
