package wire

import (
	"strconv"
	"strings"
	"sync"
)

// Slots is the number of hash slots of a Redis Cluster.
const Slots = 16384

// Slot returns the hash slot of key in a Redis Cluster: CRC-16 (XMODEM) of its hash tag or, without a tag, of
// the whole key.
func Slot(key string) int {
	if hasTag(key) {
		_, rest, _ := strings.Cut(key, "{")
		key, _, _ = strings.Cut(rest, "}")
	}
	return int(crc16(key) % Slots)
}

// crc16 returns the CRC-16 (XMODEM) of text.
func crc16(text string) (sum uint16) {
	for i := range len(text) {
		sum = sum<<8 ^ crcTable[byte(sum>>8)^text[i]]
	}
	return sum
}

var crcTable = func() (t [256]uint16) {
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc & 0x8000
			if crc <<= 1; carry != 0 {
				crc ^= 0x1021
			}
		}
		t[i] = crc
	}
	return t
}()

// SlotTag returns the smallest number whose decimal text hashes to a slot. As a hash tag it puts a key into
// that slot.
func SlotTag(slot int) string { return slotTags()[slot] }

var slotTags = sync.OnceValue(func() *[Slots]string {
	all := new([Slots]string)
	for i, left := 0, Slots; left > 0; i++ {
		text := strconv.Itoa(i)
		if s := Slot(text); all[s] == "" {
			all[s] = text
			left--
		}
	}
	return all
})

// ShardKey returns the SetKey for a shard of a Redis Cluster, in one of the shard's hash slots.
func ShardKey(lockPrefix string, slot int) string {
	return Set + "{" + SlotTag(slot) + "}" + strings.TrimPrefix(SetKey(lockPrefix), Set)
}
