//go:build !race

package sqllock_test

const raceDetectorOn = false
