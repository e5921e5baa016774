package sqlite

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// The test cannot mount a network file system, so it treats the local file system's number as one.
func TestNetworkFileSystemIsRejected(t *testing.T) {
	dir := t.TempDir()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	kind, _ := fileSystem(dir)
	if networks[kind] != "" || maybeRemoteFS[kind] != "" {
		t.Skipf("%s is on a network itself", dir)
	}
	networks[kind] = "a network"
	defer delete(networks, kind)
	_, err := Open(t.Context(), "sqlite://"+dir+"/locks.db", nil)
	if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "a network") || !strings.Contains(err.Error(), "disk of this machine") {
		t.Errorf("Open() = %v, want ErrConfig", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("Open created %v, %v", left, err)
	}
}

// The doctor must not count a file in one container's layer as a file of the machine. The test treats the local
// file system's number as a container's.
func TestDoctorNamesContainerLayer(t *testing.T) {
	dir := t.TempDir()
	kind, _ := fileSystem(dir)
	if before, known := layers[kind]; known {
		defer func() { layers[kind] = before }()
	} else {
		defer delete(layers, kind)
	}
	layers[kind] = "a layer"
	var notes driverkit.Findings
	checkSpace(&notes, dir)
	if len(notes.Found) != 1 || notes.Found[0].Bad() || !strings.Contains(notes.Found[0].Text, "on a layer,") ||
		strings.Contains(notes.Found[0].Text, "this machine") {
		t.Errorf("the doctor reports %+v", notes.Found)
	}
}
