//go:build race

package differential

const raceEnabled = true // steps take several times as long, and have no second goroutine
