package locktest

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	leakLabel = "locktest"
	leakTime  = 10 * time.Second // time for goroutines to end after Close
)

var leakID atomic.Int64

// watchGoroutines fails t if a goroutine outlives the test that the calling goroutine, or one of its
// descendants, starts from now on. A goroutine inherits the profiler's labels of the goroutine that starts it.
// The labels distinguish the goroutines of concurrent tests.
func watchGoroutines(t testing.TB) {
	id := strconv.FormatInt(leakID.Add(1), 10)
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(leakLabel, id)))
	t.Cleanup(func() {
		pprof.SetGoroutineLabels(context.Background())
		var left []string
		for end := time.Now().Add(pace.Scale(leakTime)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if left = labelledStacks(id); len(left) == 0 {
				return
			}
		}
		t.Errorf("%d goroutines are left after Close:\n%s", len(left), strings.Join(left, "\n\n"))
	})
}

// labelledStacks returns the stacks of the goroutines with the label.
func labelledStacks(id string) []string {
	var text bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&text, 1)
	var found []string
	for stack := range strings.SplitSeq(text.String(), "\n\n") {
		if strings.Contains(stack, strconv.Quote(leakLabel)+":"+strconv.Quote(id)) {
			found = append(found, stack)
		}
	}
	return found
}
