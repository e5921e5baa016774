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

// An owner id is <client>.<seq>, and ~<note> behind it where the claim has a note. The
// client part is the same for all ids of a client. seq is in base 36; ours counts up and
// runs ahead of the clock in µs, so that people can see how old a claim is. The note is
// percent-encoded: an id has no space, no comma, no plus sign and none of the marks that may
// end it. These are * for a grant that can be adopted, and ! for a lock that was released and
// stands for its MinHold.
//
// Where the locks are shared with Redisson, an id looks like one of its threads,
// <uuid>:<seq>, with seq in base 10. Such a uuid is of version 8, and Redisson's are of
// version 4.

// clientLen and clientLetters are the form of a client's id, by which ids are told from what
// other libraries leave in a lock, such as a host and a number.
const (
	clientLen     = 26
	clientLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// NewClient is a client's id: 130 random bits in base 32.
func NewClient() string { return rand.Text() }

// NewUUID is a client's id in the form of a UUID, with 122 random bits.
func NewUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

var ourUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// Owner makes an owner id.
func Owner(client string, seq int64, note string) string {
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

// kept ends what a lock has in place of an owner that has released it for its MinHold.
const kept = "!"

// KeptID is what a lock has for its owner that owner has released, and that stands for its MinHold.
func KeptID(owner string) string { return owner + kept }

// IsKept says whether a lock with that owner was released and stands for its MinHold.
func IsKept(owner string) bool { return strings.HasSuffix(owner, kept) }

// ClientOf is the client's part of an owner id, or "" if owner is not one.
func ClientOf(owner string) string {
	client, _, _, _ := parse(owner)
	return client
}

// lastSeq is the end of the year 9999 in µs since 1970. No later time has a form in JSON.
const lastSeq = 253_402_300_799_999_999

// Since returns when the owner asked for the lock, by its own clock; zero for an owner that is
// not one of ours, or whose number is no time.
func Since(owner string) time.Time {
	_, seq, _, ok := parse(owner)
	if !ok || seq < 0 || seq > lastSeq {
		return time.Time{}
	}
	return time.UnixMicro(seq)
}

// NoteOf is the note in an owner id, or "" if there is none.
func NoteOf(owner string) string {
	_, _, encoded, _ := parse(owner)
	note, _ := url.PathUnescape(encoded) // "" where it is damaged
	return note
}

func parse(owner string) (client string, seq int64, note string, ok bool) {
	base := 36
	owner = strings.TrimSuffix(strings.TrimSuffix(owner, kept), "*") // the mark is driver.Adoptable's
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
