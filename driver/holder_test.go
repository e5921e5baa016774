package driver

import "testing"

func TestHolderGrantsAreFound(t *testing.T) {
	t.Parallel()
	for _, g := range []Grant{{Owner: "a.1", Token: 1000}, {Owner: "a.1~note", Token: 1000}, {Owner: "a.1"}} {
		seen := make(map[string]bool)
		for i := range 31 {
			owner, token := g.NthHolder(i)
			if seen[owner] || g.Token != 0 && token != g.Token+int64(i) || g.Token == 0 && token != 0 {
				t.Errorf("holder %d of %+v is %q with %d", i, g, owner, token)
			}
			seen[owner] = true
			if grant, first := GrantOf(owner, token); grant != g.Owner || first != g.Token {
				t.Errorf("GrantOf(%q, %d) = %q, %d; want %q, %d", owner, token, grant, first, g.Owner, g.Token)
			}
		}
		if owner, token := g.NthHolder(0); owner != g.Owner || token != g.Token {
			t.Errorf("the first holder of %+v is %q with %d", g, owner, token)
		}
	}
}
