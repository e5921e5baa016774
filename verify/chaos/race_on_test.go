//go:build race

package main

// raced says that the race detector is on, as in CI, which has time for more.
const raced = true
