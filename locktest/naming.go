package locktest

import (
	"strings"

	"github.com/holdfast-go/holdfast"
)

var namingCases = []testCase{
	{"UnusualNamesWork", unusualNamesWork},
	{"InvalidNamesAreRejected", badNamesAreRejected},
}

// names lists keys that a service could confuse with its own keys, or with one another.
var names = []string{
	"x", "{x}", "{{x}", "{x}}", "{{x}}", ":x", ":{x}", "{x}y", "y{x}", "a{b}c", "a{b}{c}", "{", "}", "{}", "{}x", "}{", "x{", "x}", ":", "::", "{:}",
	"a/b/c", "a//b", "/", "/a/", "a/", ".", "..", "a b", " ", " x", "x ", "a:b", "lock:x", "lock:", "fence:x", "queue:x", "holdfast",
	"*", "?", "[x]", "[^x]", `\`, `\x`, `"`, `'`, "`", "%s", "%00", "$1", "#", "--", "-", "0", "-1", "1.5", "nil", "null", "NX",
	"ключ/от/замка", "鍵", "🔒", "e\u0301", "\u00e9", "\u00a0", "\u200b", "\ufeffx", "X",
	strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("é", 256), "{" + strings.Repeat("x", 510) + "}",
}

func unusualNamesWork(b *bench) {
	all := b.newClients(2)
	leases := make([]*holdfast.Lease, len(names))
	for i, name := range names {
		l, err := b.tryAcquire(all[i%2], name, &holdfast.AcquireOptions{TTL: b.long})
		if err != nil {
			b.Errorf("TryAcquire(%.40q) = %v", name, err)
			continue
		}
		leases[i] = l
		defer b.release(l)
	}
	for i, l := range leases {
		if l == nil {
			continue
		}
		b.checkHeld(all[(i+1)%2], names[i])
		if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.long) }); err != nil {
			b.Errorf("Extend of %.40q = %v", names[i], err)
		}
		st, err := all[(i+1)%2].Inspect(b.boundedContext(), names[i])
		if err == nil && (st.Owner != l.Owner() || st.Token != l.Token() || st.Key != names[i]) {
			b.Errorf("Inspect(%.40q) = %+v, want id %q, token %d", names[i], st, l.Owner(), l.Token())
		}
	}
	if b.Failed() {
		return
	}
	for i, l := range leases {
		b.release(l)
		l = b.acquire(all[(i+1)%2], names[i], nil)
		b.release(l)
	}
	b.checkCleared()
}

func badNamesAreRejected(b *bench) {
	c := b.newClient()
	for _, name := range []string{
		"", "a\nb", "\x00", "a\x00b", "\x7f", "\t", "a\u0085b", "\xff", "a\xc3", strings.Repeat("x", 513), "holdfast:x", "holdfast:",
	} {
		st, looked := c.Inspect(b.Context(), name)
		forced := c.ForceRelease(b.Context(), name, 1, "")
		refused := map[string]error{
			"Acquire":    errorOf(c.Acquire(b.Context(), name, nil)),
			"TryAcquire": errorOf(c.TryAcquire(b.Context(), name, nil)),
			"Adopt":      errorOf(c.Adopt(b.Context(), name, "someone.1", 1, nil)),
		}
		if name == "" || strings.HasPrefix(name, "holdfast:") {
			refused["Inspect"], refused["ForceRelease"] = looked, forced
		}
		for what, err := range refused {
			if err == nil {
				b.Errorf("%s(%.40q) succeeded", what, name)
			}
			b.checkError(err, holdfast.ErrInvalid)
		}
		if st.Held || forced == nil { // other programs' locks, which may be inspected; there are none here
			b.Errorf("Inspect(%.40q) = %+v, %v, ForceRelease: %v; want no holder", name, st, looked, forced)
		}
	}
	b.release(b.acquire(c, "good", nil)) // a key that the service cannot store does not make it unfit
	b.checkCleared()
}

func errorOf[T any](_ T, err error) error { return err }
