//go:build !race

package sqllock_test

const raced = false
