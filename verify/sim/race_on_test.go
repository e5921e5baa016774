//go:build race

package sim

const raceEnabled = true // runs take several times as long, and have no second goroutine
