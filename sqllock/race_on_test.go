//go:build race

package sqllock_test

// raceDetectorOn reports that the race detector is on. Each process then takes several times the memory.
const raceDetectorOn = true
