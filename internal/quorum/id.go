package quorum

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// An owner id is <client>.<seq>, followed by ~<note> if the claim has a note. The client part is the same for
// all ids of a client. seq is in base 36. It counts up and runs ahead of the clock in µs, so that people can
// see the age of a claim. The note is percent-encoded: an id has no space, comma or plus sign, and none of the
// marks that may end it. The mark * is for a grant that can be adopted, and ! for a released lock that is kept
// for its MinHold.
//
// If the locks are shared with Redisson, an id looks like one of Redisson's threads, <uuid>:<seq>, with seq in
// base 10. These uuids are of version 8, and Redisson's are of version 4.

const (
	clientLen     = 26
	clientLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// NewClient returns a new client id: 130 random bits in base 32.
func NewClient() string { return rand.Text() }

// NewUUID returns a new client id in the form of a UUID, with 122 random bits.
func NewUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

var ourUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// NewOwner returns an owner id.
func NewOwner(client string, seq int64, note string) string {
	id := append(make([]byte, 0, 64), client...) // on the stack, unless there is a note
	if len(client) == clientLen {
		id = strconv.AppendInt(append(id, '.'), seq, 36)
	} else {
		id = strconv.AppendInt(append(id, ':'), seq, 10)
	}
	if note != "" {
		id = append(append(id, '~'), strings.ReplaceAll(url.QueryEscape(note), "+", "%20")...)
	}
	return string(id)
}

// minHoldMark ends the owner id of a released lock that is kept for its MinHold.
const minHoldMark = "!"

// MinHoldID returns the owner id that replaces owner while its released lock is kept for its MinHold.
func MinHoldID(owner string) string { return owner + minHoldMark }

// IsMinHoldID reports whether owner is an id that MinHoldID has returned.
func IsMinHoldID(owner string) bool { return strings.HasSuffix(owner, minHoldMark) }

// ClientOf returns the client part of an owner id, or "" if owner is not an owner id.
func ClientOf(owner string) string {
	client, _, _, _ := parseOwner(owner)
	return client
}

// lastSeq is the end of the year 9999 in µs since 1970. JSON has no form for a later time.
const lastSeq = 253_402_300_799_999_999

// Since returns when the owner asked for the lock, by its own clock. It returns zero if owner is not an owner
// id, or its number is not a time.
func Since(owner string) time.Time {
	_, seq, _, ok := parseOwner(owner)
	if !ok || seq < 0 || seq > lastSeq {
		return time.Time{}
	}
	return time.UnixMicro(seq)
}

// NoteOf returns the note in an owner id, or "" if there is none.
func NoteOf(owner string) string {
	_, _, encoded, _ := parseOwner(owner)
	note, _ := url.PathUnescape(encoded) // "" where it is damaged
	return note
}

func parseOwner(owner string) (client string, seq int64, note string, ok bool) {
	base := 36
	owner = strings.TrimSuffix(strings.TrimSuffix(owner, minHoldMark), "*") // the mark * of driver.Adoptable
	client, rest, found := strings.Cut(owner, ".")
	if !found || len(client) != clientLen || strings.Trim(client, clientLetters) != "" {
		base = 10
		if client, rest, found = strings.Cut(owner, ":"); !found || !ourUUID.MatchString(client) {
			return "", 0, "", false
		}
	}
	digits, note, _ := strings.Cut(rest, "~")
	seq, err := strconv.ParseInt(digits, base, 64)
	if err != nil {
		return "", 0, "", false
	}
	return client, seq, note, true
}
