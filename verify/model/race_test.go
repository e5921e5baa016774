//go:build race

package model

// raced says that the race detector is on, which makes the model about ten
// times slower: the large rows are left out.
const raced = true
