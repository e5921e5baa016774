//go:build linux

package main

import (
	"os"
	"testing"
	"time"
)

// TestMain is a client process where it was started as one.
func TestMain(m *testing.M) {
	if text := os.Getenv(orderVariable); text != "" {
		exit(beClient(text))
	}
	os.Exit(m.Run())
}

// TestPromisesHoldUnderFaults goes through the built-in schedule once. It does not
// run at the same time as other tests of this package: their load would look like
// a fault.
func TestPromisesHoldUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out a minute and a half of faults on real servers and processes")
	}
	s, err := loadSchedule("")
	if err != nil {
		t.Fatal(err)
	}
	var once time.Duration
	for _, w := range s.Windows {
		once += time.Duration(w.Length)
	}
	r, err := run(t.Context(), settings{length: once, out: t.ArtifactDir()}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Text())
	if !r.Passed() {
		t.Error("a promise was broken, or the run proves nothing")
	}
}
