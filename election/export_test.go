package election

import "github.com/holdfast-go/holdfast"

// Observer is the memory of an Observe, fed with the terms that it would see.
type Observer struct{ observer }

// Follow is follow, called again as often as it asks for that.
func (o *Observer) Follow(st holdfast.Status, err error) (_ Leader, news bool, _ error) {
	for {
		leader, news, again, err := o.follow(st, err)
		if !again {
			return leader, news, err
		}
	}
}

// See is one call of follow, and says whether to look again.
func (o *Observer) See(st holdfast.Status) (leader Leader, news, again bool) {
	leader, news, again, _ = o.follow(st, nil)
	return leader, news, again
}
