package main

import "github.com/holdfast-go/holdfast/internal/rig/tempo"

// The tests build holdfast with this file, so that its time-outs fit the machine. Releases do not have it.
func init() { tempo.Adopt() }
