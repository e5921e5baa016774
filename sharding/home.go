package sharding

import (
	"crypto/sha256"
	"encoding/binary"
)

// Each set has a score for a name, and the set with the highest score is the home of the name (rendezvous
// hashing: D. Thaler and C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998). A new set
// takes its share from all the others, and a removed set gives its share to all of them: no other name moves.
//
//	seed(x)        = the first 8 bytes of SHA-256(x), a number with the most significant byte first
//	score(set, x)  = mix(seed(set) XOR seed(x))
//	mix(z)         = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31
//
// modulo 2^64; mix is the end of SplitMix64. testdata/homes.txt has vectors. None of this ever changes,
// because all clients have to agree.

func seedOf(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:])
}

func mixBits(z uint64) uint64 {
	z ^= z >> 30
	z *= 0xbf58476d1ce4e5b9
	z ^= z >> 27
	z *= 0x94d049bb133111eb
	return z ^ z>>31
}

// homeOf returns the set with the highest score for key. Scores differ because seeds do: mixBits is one to
// one.
func (d *Driver) homeOf(key string) (best *set) {
	h := seedOf(key)
	var top uint64
	for i := range d.sets {
		s := &d.sets[i]
		if score := mixBits(s.seed ^ h); best == nil || score > top {
			best, top = s, score
		}
	}
	return best
}

// Home returns the name of the set that keeps key.
func (d *Driver) Home(key string) string { return d.homeOf(key).Name }
