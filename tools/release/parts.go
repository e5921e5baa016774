package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// A parts list (SBOM) in the format of CycloneDX 1.5.
type (
	partsList struct {
		Format     string   `json:"bomFormat"`
		Spec       string   `json:"specVersion"`
		Version    int      `json:"version"`
		Metadata   metadata `json:"metadata"`
		Components []part   `json:"components"`
	}
	metadata struct {
		Timestamp string `json:"timestamp"`
		Component part   `json:"component"`
	}
	part struct {
		Ref        string     `json:"bom-ref"`
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl"`
		Properties []property `json:"properties,omitempty"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// writeParts writes what program consists of, as the linker has noted it there.
func writeParts(name, program string, s *source) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	command := partOf(&info.Main)
	command.Type = "application"
	for _, setting := range info.Settings { // the system, the flags, the commit
		command.Properties = append(command.Properties, property{"go:build:" + setting.Key, setting.Value})
	}
	list := partsList{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{s.date.Format(time.RFC3339), command}}
	for _, m := range info.Deps {
		list.Components = append(list.Components, partOf(m))
	}
	list.Components = append(list.Components, partOf(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}))
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

func partOf(m *debug.Module) part {
	if m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	p := part{Ref: purl, Type: "library", Name: m.Path, Version: m.Version, PURL: purl}
	if m.Sum != "" {
		p.Properties = []property{{"go:sum", m.Sum}}
	}
	return p
}
