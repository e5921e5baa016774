package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
)

// build holds the fields that version prints.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	System   string `json:"system"`
	Missing  string `json:"missing,omitempty"` // what this system cannot do
}

func currentBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Missing: run.Missing()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and what this system lacks",
		Example: `  holdfast version
  holdfast version -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output == "json" {
				return a.writeJSON(currentBuild())
			}
			return a.writeVersion()
		},
	}
	a.outputFlag(cmd)
	return cmd
}

func (a *app) writeVersion() error {
	b := currentBuild()
	text := "holdfast " + b.Version
	if b.Revision != "" {
		text += " commit " + b.Revision[:min(len(b.Revision), 12)]
	}
	text += fmt.Sprintf(" %s %s\n", b.Go, b.System)
	if b.Missing != "" {
		text += "missing on this system: " + b.Missing + "\n"
	}
	_, err := fmt.Fprint(a.io.Out, text)
	return outputError(err)
}
