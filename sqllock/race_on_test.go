//go:build race

package sqllock_test

// raced reports that the race detector is on. Each process then takes several times the memory.
const raced = true
