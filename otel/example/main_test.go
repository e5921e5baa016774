package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestExamplePrintsSpansAndMetrics(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`span   lock acquire`, `span   lock hold`, `span   pay order .* 1 links`, `metric distributed_lock.wait `, `metric distributed_lock.node_state`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
