package sharding

import (
	"crypto/sha256"
	"encoding/binary"
)

// Where a name lives: each set has a score for the name, and the one with the highest is its
// home (rendezvous hashing: D. Thaler and C. Ravishankar, "Using Name-Based Mappings to
// Increase Hit Rates", 1998). A set that joins takes its share from all the others, and one
// that leaves gives its share to all of them: no other name moves.
//
//	seed(x)        = the first 8 bytes of SHA-256(x), a number with the most significant byte first
//	score(set, x)  = mix(seed(set) XOR seed(x))
//	mix(z)         = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31
//
// modulo 2^64; mix is the end of SplitMix64. testdata/homes.txt has vectors. None of this
// ever changes, as all clients have to agree.

func seed(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:])
}

func mix(z uint64) uint64 {
	z ^= z >> 30
	z *= 0xbf58476d1ce4e5b9
	z ^= z >> 27
	z *= 0x94d049bb133111eb
	return z ^ z>>31
}

// homes are the old home of key and the new one: the same set, but for a name that moves.
func (d *Driver) homes(key string) (a, b int) {
	h := seed(key)
	return d.home(h, Joins), d.home(h, Leaves)
}

// home is the set with the highest score, without those in the given change. Scores differ, as
// seeds do: mix is one to one.
func (d *Driver) home(h uint64, without Change) (best int) {
	best = -1
	var top uint64
	for i, s := range d.sets {
		if s.Change == without {
			continue
		}
		if score := mix(s.seed ^ h); best < 0 || score > top {
			best, top = i, score
		}
	}
	return best
}

// Homes names the set where key lives, or for a name that moves its old home and its new one.
func (d *Driver) Homes(key string) []string {
	a, b := d.homes(key)
	if a == b {
		return []string{d.sets[a].Name}
	}
	return []string{d.sets[a].Name, d.sets[b].Name}
}
