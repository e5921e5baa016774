package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// The test counts turns instead of time: it runs until the other side has had its turns, and then Holdfast's
// turns decide.
func TestNoLibraryLosesIncrementsOrStarves(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out a minute of other libraries")
	}
	t.Parallel()
	const count = 10 * Workers
	for _, l := range Libraries {
		t.Run(fmt.Sprintf("%s on %d", l.Name, l.Nodes), func(t *testing.T) {
			t.Parallel()
			if l.JVM {
				jvm.Lock() // one at a time: each needs as much memory as all the others
				t.Cleanup(jvm.Unlock)
			}
			var addrs []string
			for _, s := range redistest.StartN(t, l.Nodes) {
				addrs = append(addrs, s.Addr())
			}
			r, err := Run(t.Context(), l, addrs, count)
			skipUnlessRequired(t, err)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", r)
			if r.Lost != 0 || r.Theirs.Locks != count {
				t.Errorf("%d increments were lost, of %d and %d", r.Lost, r.Ours.Locks, r.Theirs.Locks)
			}
			// Most other libraries retry a few times a second while Holdfast has hundreds of turns. Redisson is
			// notified.
			least := 100
			if l.Format == redis.FormatRedisson {
				least = 40
			}
			if all := r.Ours.Locks + r.Theirs.Locks; r.Ours.Locks*20 < all || r.Theirs.Locks*least < all {
				t.Errorf("one side got %d of %d turns, the other %d", r.Ours.Locks, all, r.Theirs.Locks)
			}
		})
	}
}

var jvm sync.Mutex // guards the use of Java

// skipUnlessRequired skips a program that this machine cannot run, unless everything is required.
func skipUnlessRequired(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, foreign.ErrMissing) && os.Getenv("HOLDFAST_SERVERS_REQUIRED") == "" {
		t.Skip(err)
	}
}

func TestClientsInOtherLanguagesPassTheVectors(t *testing.T) {
	t.Parallel()
	for _, book := range []struct {
		file   string
		format []string // arguments of the programs
		errors []string // pairs of an expected text and the faulty text to insert
	}{
		{"vectors.json", nil, []string{`"reply": "now-31"`, `"reply": "now-32"`, `{"channel":"holdfast:wake:b"`, `{"channel":"holdfast:wake:c"`}},
		{"vectors-redisson.json", []string{"redisson"}, []string{
			`"reply": "now-31"`, `"reply": "now-32"`, `{"channel":"redisson_lock__channel:{vector}"`, `{"channel":"redisson_lock__channel:vector"`,
		}},
	} {
		text, err := os.ReadFile("../differential/testdata/" + book.file)
		if err != nil {
			t.Fatal(err)
		}
		wrong := strings.NewReplacer(book.errors...).Replace(string(text))
		for language, file := range map[string]string{"python": "vectors.py", "node": "vectors.cjs"} {
			for name, vectors := range map[string]string{"as they are": string(text), "with errors": wrong} {
				t.Run(fmt.Sprintf("%s %s %s", language, book.file, name), func(t *testing.T) {
					t.Parallel()
					path := filepath.Join(t.TempDir(), book.file)
					if err := os.WriteFile(path, []byte(vectors), 0o600); err != nil {
						t.Fatal(err)
					}
					addr := redistest.Start(t, nil).Addr()
					args := append([]string{path, addr[strings.LastIndex(addr, ":")+1:]}, book.format...)
					cmd, err := foreign.Program(t.Context(), language, file, args...)
					skipUnlessRequired(t, err)
					if err != nil {
						t.Fatal(err)
					}
					out, err := cmd.CombinedOutput()
					if right := vectors == string(text); (err == nil) != right || strings.Contains(string(out), "cases, 0 differences") != right {
						t.Errorf("%v\n%s", err, out)
					}
					if vectors == wrong && !(strings.Contains(string(out), "now-32") && strings.Contains(string(out), "wake-ups")) {
						t.Errorf("the errors are not documented:\n%s", out)
					}
				})
			}
		}
	}
}
