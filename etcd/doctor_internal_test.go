package etcd

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// A version is too old if a later release fixed a fault in it.
func TestDoctorReportsOldVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]driver.Verdict{
		"3.3.27": driver.VerdictFault, "2.3.8": driver.VerdictFault, "3.4.30": driver.VerdictWarning, "3.4.31": driver.VerdictOK,
		"3.5.12": driver.VerdictWarning, "3.5.13": driver.VerdictOK, "3.5.13-rc.1": driver.VerdictOK, "3.6.0": driver.VerdictOK, "4.0.0": driver.VerdictOK,
	} {
		var m member
		if m.checkVersion(version); len(m.Found) != 1 || m.Found[0].Verdict != want {
			t.Errorf("%s: %+v, want %s", version, m.Found, want)
		}
	}
}
