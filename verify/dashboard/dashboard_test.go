// Package dashboard checks the dashboard in package prometheus against Grafana's own types, and makes a real
// Prometheus raise each alert for jobs.
package dashboard

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// checkTypes compiles text as a Grafana dashboard in TypeScript and returns the errors: unknown or missing
// properties, or values of a wrong type.
func checkTypes(t *testing.T, libraries, text string) (complaints string) {
	t.Helper()
	dir := t.TempDir()
	program := "import type { Dashboard } from '@grafana/schema';\nexport const dashboard: Dashboard = " + text + ";\n"
	err := errors.Join(os.WriteFile(filepath.Join(dir, "dashboard.ts"), []byte(program), 0o600),
		os.Symlink(filepath.Join(libraries, "node_modules"), filepath.Join(dir, "node_modules")))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck",
		"--module", "nodenext", "--moduleResolution", "nodenext", "--target", "es2022", "dashboard.ts")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "dashboard.ts(") {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestDashboardMatchesGrafanaTypes(t *testing.T) {
	rig.Nightly(t, "dashboard")
	t.Parallel()
	libraries, err := foreign.Libraries("grafana")
	if errors.Is(err, foreign.ErrMissing) && os.Getenv("HOLDFAST_SERVERS_REQUIRED") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if complaints := checkTypes(t, libraries, string(text)); complaints != "" {
		t.Error(complaints)
	}
	for _, wrong := range [][2]string{{`"gridPos"`, `"gridPoz"`}, {`"schemaVersion": `, `"schemaVersion": "39" + `}} {
		if checkTypes(t, libraries, strings.Replace(string(text), wrong[0], wrong[1], 1)) == "" {
			t.Errorf("with %s in place of %s the dashboard is still valid", wrong[1], wrong[0])
		}
	}
}
