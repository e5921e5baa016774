package election

import "github.com/holdfast-go/holdfast"

// Observer exposes the state of one Observe, so that tests can feed it with results.
type Observer struct{ observer }

// Follow calls follow until it does not ask for another look.
func (o *Observer) Follow(st holdfast.Status, err error) (_ Leader, news bool, _ error) {
	for {
		leader, news, again, err := o.applyStatus(st, err)
		if !again {
			return leader, news, err
		}
	}
}

// ApplyStatus calls follow once.
func (o *Observer) ApplyStatus(st holdfast.Status) (leader Leader, news, again bool) {
	leader, news, again, _ = o.applyStatus(st, nil)
	return leader, news, again
}
