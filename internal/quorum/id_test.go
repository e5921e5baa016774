package quorum

import (
	"strings"
	"testing"
	"time"
)

// FuzzOwnerIDs checks that the value of a lock is parsed as an owner id only if it is one, and without a
// panic.
func FuzzOwnerIDs(f *testing.F) {
	client := NewClient()
	for _, uuid := range []string{NewUUID(), "8743c9c0-0795-4907-87fd-6c719a6b4586"} {
		f.Add(NewOwner(uuid, 1, ""))
		f.Add(NewOwner(uuid, 1, "nightly import"))
		f.Add(uuid + ":1:write")
	}
	for _, owner := range []string{
		NewOwner(client, 1, ""), NewOwner(client, 1, "nightly import"), client + ".1~", client + ".1~%", client + ".1~%zz", "", ".", "a.", ".1", "a.1", "a.b.1",
		"a.-1", client + ".+1", client + ".zzzzzzzzzzzz", client + ".zzzzzzzzzzzzzz", "Zm9yZWlnbg==", client + ".1+3", "a. 1", "db7.example.4711",
	} {
		f.Add(owner)
	}
	f.Fuzz(func(t *testing.T, owner string) {
		client, since, note := ClientOf(owner), Since(owner), NoteOf(owner)
		if _, err := since.MarshalJSON(); err != nil {
			t.Errorf("%q: %v", owner, err)
		}
		if client == "" {
			if !since.IsZero() || note != "" {
				t.Errorf("%q is of no client, of %v, with note %q", owner, since, note)
			}
			return
		}
		between := map[int]string{clientLen: ".", 36: ":"}[len(client)]
		if between == "" || strings.Contains(client, between) || !strings.HasPrefix(owner, client+between) {
			t.Errorf("%q was parsed as client %q", owner, client)
		}
	})
}

// FuzzNotes checks that a note survives encoding and decoding, and that an id with a note has no character
// that would end it in a message, a list or a lease's owner.
func FuzzNotes(f *testing.F) {
	for _, note := range []string{"", "nightly import", "50 % + more", "~", "a.b~c", "Grüße, Müller", "\x00\n"} {
		f.Add(note)
	}
	clients := []string{NewClient(), NewUUID()}
	f.Fuzz(func(t *testing.T, note string) {
		for _, client := range clients {
			owner := NewOwner(client, 1234, note)
			if got := NoteOf(owner); got != note {
				t.Errorf("%q carries note %q, want %q", owner, got, note)
			}
			if ClientOf(owner) != client || Since(owner) != time.UnixMicro(1234) {
				t.Errorf("%q: client %q, since %v", owner, ClientOf(owner), Since(owner))
			}
			if strings.ContainsAny(owner, " +,\n\x00") {
				t.Errorf("%q contains a separator", owner)
			}
		}
	})
}

// The value of another library's lock is not an owner id.
func TestOnlyOwnIDFormsAreParsed(t *testing.T) {
	t.Parallel()
	client := NewClient()
	if ClientOf(client+".k3j") != client {
		t.Errorf("%q was not parsed", client)
	}
	for _, owner := range []string{
		client, client + ".", client + ".%", client + "x.1", client[1:] + ".1", strings.ToLower(client[:25]) + "a.1", client[:25] + "0.1",
		"8743c9c0-0795-4907-87fd-6c719a6b4586:1", "web-3.internal.example.org.1", "4711",
	} {
		if got := ClientOf(owner); got != "" {
			t.Errorf("%q was parsed as an id of client %q", owner, got)
		}
	}
}
