package election

import "github.com/holdfast-go/holdfast"

// Observer is what an Observe has seen, fed with what it would see.
type Observer struct{ observer }

// Follow is follow.
func (o *Observer) Follow(st holdfast.Status, err error) (Leader, error, bool) {
	return o.follow(st, err)
}
