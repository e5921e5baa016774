package place_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/place"
)

// A node's name in the map, or in a redirection, is dialed only if it is a valid address.
func TestClusterAddressesAreDialable(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"h1": "h1:7000", "10.0.0.1": "10.0.0.1:7000", "::1": "[::1]:7000", "[::1]": "[::1]:7000", "": "from:7000", "?": "from:7000",
		"a b": "", "h1\r\nAUTH": "", "h1/x": "", "user@h1": "", "\x1b[31m": "", "[[::1]": "",
	} {
		addr, ok := place.ResolveAddr(host, "7000", "from:6379")
		if ok != (want != "") || ok && addr != want {
			t.Errorf("Join(%q) = %q, %v, want %q", host, addr, ok, want)
		}
		if host == "?" {
			continue
		}
		reply := []any{[]any{int64(0), int64(5), []any{host, int64(7000), "id"}}}
		spans, err := place.ParseSlots(reply, "from:6379")
		if (err == nil) != ok || ok && spans[0].Addr != want || err != nil && !strings.Contains(err.Error(), "names no address") {
			t.Errorf("ParseSlots of %q = %v, %v, want %q", host, spans, err, want)
		}
	}
	for _, port := range []int64{0, -1, 65536} {
		reply := []any{[]any{int64(0), int64(5), []any{"h1", port, "id"}}}
		if spans, err := place.ParseSlots(reply, "from:6379"); err == nil {
			t.Errorf("port %d: %v", port, spans)
		}
	}
}

// A valid map names each slot once, and no more masters than a cluster may have. Other maps could take hours to
// process.
func TestImpossibleSlotMapsAreRejected(t *testing.T) {
	t.Parallel()
	ranges := func(n int, of func(i int) (first, last int64, port int64)) (all []any) {
		for i := range n {
			first, last, port := of(i)
			all = append(all, []any{first, last, []any{"h", port, "id"}})
		}
		return all
	}
	for name, c := range map[string]struct {
		reply []any
		ok    bool
	}{
		"each slot alone":  {ranges(16384, func(i int) (int64, int64, int64) { return int64(i), int64(i), int64(1 + i%1000) }), true},
		"slots twice":      {ranges(3, func(i int) (int64, int64, int64) { return 0, 9000, int64(1 + i) }), false},
		"too many masters": {ranges(1001, func(i int) (int64, int64, int64) { return int64(i), int64(i), int64(1 + i) }), false},
	} {
		if spans, err := place.ParseSlots(c.reply, "from:6379"); (err == nil) != c.ok {
			t.Errorf("%s: %d ranges, %v", name, len(spans), err)
		}
	}
}

// FuzzParseSlots checks that any map is either parsed or rejected.
func FuzzParseSlots(f *testing.F) {
	f.Add("*1\r\n*3\r\n:0\r\n:5\r\n*3\r\n$2\r\nh1\r\n:7000\r\n$2\r\nid\r\n")
	f.Add("*1\r\n*3\r\n:0\r\n:5\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$3\r\n::1\r\n")
	f.Fuzz(func(t *testing.T, reply string) {
		v, err := resp.NewReader(strings.NewReader(reply)).ReadValue()
		if err != nil {
			return
		}
		spans, err := place.ParseSlots(v.Decode(), "from:6379")
		for _, s := range spans {
			if s.First < 0 || s.Last < s.First || s.Last >= 16384 || s.Addr == "" {
				t.Errorf("%q: %+v, %v", reply, s, err)
			}
		}
	})
}
