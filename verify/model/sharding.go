package model

import (
	"fmt"
	"strings"
)

// This file is the model of a name that moves from one set of servers to another (package
// sharding). A set is one step here: what is above it holds for each set by the other rows.

const (
	maxShardClients = 4
	oldSet, newSet  = 0, 1
)

// view is what a client knows of the change of the list.
type view uint8

const (
	knowsOld  view = iota // step 1
	knowsBoth             // step 2
	knowsBack             // step 2 of a change back, which is to begin when this one is over
	knowsNew              // step 4
)

func (v view) String() string {
	return [...]string{"old list", "both lists", "both lists, back", "new list"}[v]
}

// stage is where a client of a name that moves stands.
type stage uint8

const (
	shardIdle stage = iota
	shardTaking
	shardRaising // has all, and no token yet
	shardHolding
	shardFreeing
	shardDead
)

type shardClient struct {
	stage  stage
	rounds uint8    // left
	took   uint8    // sets that it has taken, and not freed
	cut    uint8    // sets that its renewals do not reach
	out    uint8    // … and where its trust is over
	tokens [2]int16 // of the sets that it has taken
	token  int16    // of its last grant; 0: none yet
	before int16    // the highest token of a grant that was there when it began
}

type shardSet struct {
	owner   int8  // -1: nobody
	counter int16 // the last token; 0: it has none
	used    bool  // since time passed last
}

type shardWorld struct {
	sets    [2]shardSet
	clients [maxShardClients]shardClient
	passed  uint8 // how often as long as a counter lives has passed since the last client with the old list alone was gone, and 1
	left    shardFaults
}

// shardFaults is how often each fault may still happen.
type shardFaults struct {
	crash, cut uint8
	lock       uint8 // a set forgets a lock
	counter    uint8 // a set forgets a counter
}

// shards is a world to begin with.
type shards struct {
	views   []view
	rounds  uint8
	alone   bool // two holders at the same time break the promise
	orders  bool // tokens are checked
	counter [2]int16
	faults  shardFaults
	mutant  shardMutant
}

// shardMutant switches one rule of a change off.
type shardMutant struct {
	skip       bool // clients with the new list begin at any time
	hasty      bool // … as soon as no client with the old list alone is left
	newAlone   bool // clients with both lists take the new set alone
	oldAlone   bool // … the old set alone
	newFirst   bool // they take the new set first
	either     bool // they trust while one half is left
	unraised   bool // the higher token is not promised by the other set
	raiseNew   bool // the old set is not asked to promise the new one's token
	firstToken bool // their token is that of the old set
}

// shardMove is one thing that can happen.
type shardMove struct {
	kind   shardKind
	client uint8
	set    uint8
}

type shardKind uint8

const (
	shardBegin shardKind = iota
	shardTake
	shardRaise
	shardFree  // a holder begins to release, or frees one more set
	shardCrash // a client dies
	shardCut   // renewals no longer reach a set
	shardOut   // the trust in a set is over
	shardLapse
	shardPass
	shardLoseLock
	shardLoseCounter
)

func (s *shards) initial() (w shardWorld) {
	w.left = s.faults
	for i := range w.sets {
		w.sets[i].owner, w.sets[i].counter = -1, s.counter[i]
	}
	for c := range s.views {
		w.clients[c].rounds = s.rounds
	}
	return w
}

// order is the sets that client c takes, one after the other.
func (s *shards) order(c int) []int {
	switch v := s.views[c]; {
	case v == knowsOld, v == knowsBoth && s.mutant.oldAlone:
		return []int{oldSet}
	case v == knowsNew, v == knowsBoth && s.mutant.newAlone:
		return []int{newSet}
	case v == knowsBack, s.mutant.newFirst:
		return []int{newSet, oldSet}
	}
	return []int{oldSet, newSet}
}

// next is the set that c takes next; -1: it has all.
func (s *shards) next(w *shardWorld, c int) int {
	for _, set := range s.order(c) {
		if w.clients[c].took&(1<<set) == 0 {
			return set
		}
	}
	return -1
}

// gone says that c is done, or dead.
func (c *shardClient) gone() bool {
	return c.stage == shardDead || c.stage == shardIdle && c.rounds == 0
}

// oldGone says that no client with the old list alone is left, and no lock of one.
func (s *shards) oldGone(w *shardWorld) bool {
	for c, v := range s.views {
		if v == knowsOld && (!w.clients[c].gone() || w.sets[oldSet].owner == int8(c)) {
			return false
		}
	}
	return true
}

// settled is how often time passes before clients with the new list alone begin: once from when the last of the
// others was gone, and then as often as one client may die between its two sets, and once more.
const settled = 3

// calm says that nothing is under way that takes less time than a counter lives: locks of the
// dead have lapsed, and requests are answered.
func (s *shards) calm(w *shardWorld) bool {
	for set := range w.sets {
		if o := w.sets[set].owner; o >= 0 {
			cl := &w.clients[o]
			if cl.stage == shardDead || cl.stage == shardIdle || (cl.cut|^cl.took)&(1<<set) != 0 {
				return false
			}
		}
	}
	for c := range s.views {
		cl := &w.clients[c]
		if cl.stage == shardRaising || cl.stage == shardFreeing {
			return false
		}
		for set := range w.sets {
			if cl.stage != shardDead && cl.took&(1<<set) != 0 && w.sets[set].owner != int8(c) {
				return false
			}
		}
	}
	return true
}

// holds says that c trusts its lock.
func (s *shards) holds(w *shardWorld, c int) bool { return w.clients[c].stage == shardHolding }

func (s *shards) done(w *shardWorld) bool {
	for c := range s.views {
		if !w.clients[c].gone() {
			return false
		}
	}
	return true
}

func (s *shards) slow(shardMove) bool { return false }

func (s *shards) moves(w *shardWorld, out []shardMove) []shardMove {
	add := func(k shardKind, c, set int) { out = append(out, shardMove{k, uint8(c), uint8(set)}) }
	if w.passed < settled && s.oldGone(w) && s.calm(w) {
		add(shardPass, 0, 0)
	}
	for c, v := range s.views {
		cl := &w.clients[c]
		if w.left.crash > 0 && cl.stage != shardIdle && cl.stage != shardDead {
			add(shardCrash, c, 0)
		}
		switch cl.stage {
		case shardIdle:
			if cl.rounds > 0 && (v != knowsNew || w.passed == settled || s.mutant.skip || s.mutant.hasty && s.oldGone(w)) {
				add(shardBegin, c, 0)
			}
		case shardTaking:
			if set := s.next(w, c); w.sets[set].owner < 0 {
				add(shardTake, c, set)
			}
		case shardRaising:
			add(shardRaise, c, 0)
		case shardHolding, shardFreeing:
			for set := range w.sets {
				if cl.took&(1<<set) != 0 {
					add(shardFree, c, set)
				}
			}
		}
		for set := range w.sets {
			bit := uint8(1) << set
			switch {
			case cl.took&bit == 0 || cl.stage == shardDead:
			case cl.cut&bit == 0 && w.left.cut > 0:
				add(shardCut, c, set)
			case cl.out&bit == 0 && (cl.cut&bit != 0 || w.sets[set].owner != int8(c)): // nothing has come, or that it is another's
				add(shardOut, c, set)
			}
		}
	}
	for set := range w.sets {
		n := &w.sets[set]
		if n.owner >= 0 {
			if cl := &w.clients[n.owner]; cl.stage == shardDead || cl.took&(1<<set) == 0 || cl.out&(1<<set) != 0 {
				add(shardLapse, 0, set)
			}
			if w.left.lock > 0 {
				add(shardLoseLock, 0, set)
			}
		}
		if w.left.counter > 0 && n.counter != 0 {
			add(shardLoseCounter, 0, set)
		}
	}
	return out
}

func (s *shards) apply(from *shardWorld, m shardMove) (w shardWorld, broken string) {
	w = *from
	c, set := int(m.client), int(m.set)
	cl, n := &w.clients[c], &w.sets[set]
	bit := uint8(1) << set
	switch m.kind {
	case shardBegin:
		cl.stage, cl.before = shardTaking, 0
		cl.rounds--
		for o := range s.views {
			cl.before = max(cl.before, w.clients[o].token)
		}
	case shardTake:
		s.take(&w, c, set)
	case shardRaise:
		broken = s.raise(&w, c)
	case shardFree:
		cl.stage = shardFreeing
		s.free(&w, c, bit)
	case shardCrash:
		w.left.crash--
		cl.stage = shardDead
	case shardCut:
		w.left.cut--
		cl.cut |= bit
	case shardOut:
		cl.out |= bit
		if s.mutant.either && cl.stage == shardHolding && cl.out != cl.took {
			break
		}
		switch cl.stage {
		case shardRaising: // what it is granted is of no use, but counts
			s.promise(&w, c)
			cl.rounds++
		case shardTaking: // a wait goes on
			cl.rounds++
		}
		cl.stage = shardFreeing
		s.free(&w, c, bit) // nothing is released there: the lock lapses
	case shardLapse, shardLoseLock:
		if m.kind == shardLoseLock {
			w.left.lock--
		}
		n.owner = -1
	case shardLoseCounter:
		w.left.counter--
		n.counter = 0
	case shardPass:
		for i := range w.sets { // a holder's renewals prolong its counter
			n := &w.sets[i]
			if w.passed > 0 && !n.used && n.owner < 0 {
				n.counter = 0
			}
			n.used = false
		}
		w.passed++
	}
	return w, broken
}

// take gives set to c. A counter that is missing begins at the clock, which is above all tokens.
func (s *shards) take(w *shardWorld, c, set int) {
	cl, n := &w.clients[c], &w.sets[set]
	if n.counter == 0 {
		n.counter = s.clock(w)
	}
	n.counter++
	n.owner, n.used = int8(c), true
	cl.tokens[set] = n.counter
	if cl.took |= 1 << set; s.next(w, c) < 0 {
		cl.stage = shardRaising
	}
}

func (s *shards) clock(w *shardWorld) (now int16) {
	for i := range w.sets {
		now = max(now, w.sets[i].counter)
	}
	for c := range s.views {
		now = max(now, w.clients[c].token, w.clients[c].tokens[oldSet], w.clients[c].tokens[newSet])
	}
	return now + 3
}

// promise has all sets of c promise the highest of their tokens, as far as they can be reached, and says
// whether they have.
func (s *shards) promise(w *shardWorld, c int) (token int16, all bool) {
	cl := &w.clients[c]
	token = max(cl.tokens[oldSet], cl.tokens[newSet])
	if s.mutant.firstToken {
		token = cl.tokens[s.order(c)[0]]
	}
	all = true
	for set := range w.sets {
		n, bit := &w.sets[set], uint8(1)<<set
		switch {
		case cl.took&bit == 0, cl.tokens[set] == token, s.mutant.firstToken, s.mutant.unraised, s.mutant.raiseNew && set == oldSet:
		case cl.cut&bit != 0, n.owner != int8(c), n.counter > token:
			all = false
		default:
			n.counter, n.used = token, true
		}
	}
	return token, all
}

// raise gives c its token, once all its sets have promised it.
func (s *shards) raise(w *shardWorld, c int) (broken string) {
	cl := &w.clients[c]
	token, all := s.promise(w, c)
	if !all {
		cl.stage = shardFreeing
		cl.rounds++
		return ""
	}
	cl.stage = shardHolding
	if s.orders && cl.token == token {
		return "two grants share a token"
	}
	for o := range s.views {
		switch other := &w.clients[o]; {
		case o == c:
		case s.alone && s.holds(w, o):
			return "two hold the lock"
		case s.orders && other.token == token:
			return "two grants share a token"
		}
	}
	if cl.token = token; s.orders && token < cl.before {
		return "a later grant has a lower token"
	}
	return ""
}

// free has c give up a set: there it releases, unless its requests do not arrive.
func (s *shards) free(w *shardWorld, c int, bit uint8) {
	cl := &w.clients[c]
	for set := range w.sets {
		if n := &w.sets[set]; bit == 1<<set && cl.cut&bit == 0 && n.owner == int8(c) {
			n.owner, n.used = -1, true
		}
	}
	cl.took &^= bit
	cl.cut &^= bit
	cl.out &^= bit
	if cl.took == 0 {
		cl.stage, cl.tokens = shardIdle, [2]int16{}
	}
}

// encode counts tokens from the lowest in use.
func (s *shards) encode(w *shardWorld, b []byte) []byte {
	f := &w.left
	b = append(b, f.crash, f.cut, f.lock, f.counter, w.passed)
	for i := range w.sets {
		n := &w.sets[i]
		b = append(b, byte(n.owner), flags(n.used))
		b = append32(b, int32(n.counter))
	}
	for c := range s.views {
		cl := &w.clients[c]
		b = append(b, byte(cl.stage), cl.rounds, cl.took, cl.cut, cl.out)
		for _, t := range [...]int16{cl.tokens[0], cl.tokens[1], cl.token, cl.before} {
			b = append32(b, int32(t))
		}
	}
	return b
}

// tell writes a trace for people.
func (s *shards) tell(trace []shardMove) string {
	var b strings.Builder
	w := s.initial()
	names := [...]string{"old set", "new set"}
	for i, m := range trace {
		who := fmt.Sprintf("%s (%s)", name(m.client), s.views[m.client])
		set := names[m.set]
		next, broken := s.apply(&w, m)
		text := map[shardKind]string{
			shardBegin: who + " asks for the lock", shardTake: who + " takes the " + set,
			shardRaise: fmt.Sprintf("%s has token %d", who, next.clients[m.client].token),
			shardFree:  who + " frees the " + set, shardCrash: who + " dies", shardCut: who + " can no longer renew on the " + set,
			shardOut: "the trust of " + who + " in the " + set + " is over", shardLapse: "the lock lapses on the " + set,
			shardPass: "time passes, and what nobody has used is forgotten", shardLoseLock: "the " + set + " forgets the lock",
			shardLoseCounter: "the " + set + " forgets its counter",
		}[m.kind]
		fmt.Fprintf(&b, "%3d  %s\n", i+1, text)
		if broken != "" {
			fmt.Fprintf(&b, "     %s\n", broken)
		}
		w = next
	}
	return b.String()
}
