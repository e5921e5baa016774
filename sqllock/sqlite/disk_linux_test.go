package sqlite

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// No network file system can be mounted here, so the test takes the number of the local one for a network.
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
		t.Errorf("Open has made %v, %v", left, err)
	}
}
