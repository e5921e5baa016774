package quorum_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A script cannot import a constant, so the scripts repeat each number of the protocol.
func TestScriptsUseProtocolConstants(t *testing.T) {
	t.Parallel()
	known := map[int]string{
		quorum.Block:               "a block of tokens",
		int(quorum.LastOfBlock(0)): "the last of a block",
		quorum.QueueKeep:           "how long a place is kept",
		2*30000 + 1000:             "how long a new queue is kept",
		100:                        "how many places one request looks at, or clears away",
		99:                         "that less the first",
		10:                         "how many of the last to ask it looks at",
		quorum.MaxToken + 1:        "the first number that is no token",
		quorum.TrustedClockSkew:    "how far a clock may be off to be believed",
		quorum.MaxClockSkew:        "how far a clock may be off at all",
		15:                         "where a UUID has its version",
		36:                         "the length of a UUID, in front of Redisson's threads",
		1000:                       "µs in a ms, and the longest hand-over in ms",
		1e7:                        "where a token is cut in two, which are written faster",
	}
	found := make(map[int]bool)
	for _, s := range append(wire.Plain.Scripts(), wire.Redisson.Scripts()...) {
		if s == wire.Probe || s == wire.Redisson.Probe || s == wire.Admit { // they change no lock
			continue
		}
		for _, text := range regexp.MustCompile(`(?m)--.*$|\b[0-9]{2,}\b`).FindAllString(s.Text, -1) {
			n, err := strconv.Atoi(text)
			if err != nil {
				continue // a comment
			}
			if found[n] = true; known[n] == "" {
				t.Errorf("%d is not a constant of the protocol:\n%s", n, s.Text)
			}
		}
	}
	for n, what := range known {
		if n != quorum.Block && !found[n] {
			t.Errorf("no script contains %d, %s", n, what)
		}
	}
}
