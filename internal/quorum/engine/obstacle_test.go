package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// blamedNodes returns the nodes in err, each with its cause, or "".
func blamedNodes(err error) string {
	u, ok := errors.AsType[*driver.UnavailableError](err)
	if !ok {
		return ""
	}
	var names []string
	for _, n := range u.Nodes {
		names = append(names, n.Node+": "+n.Err.Error())
	}
	return strings.Join(names, ", ")
}

// answerAll makes each node answer its next request: "+" grants, keeps or frees, "-" denies, "!" fails, "#"
// fails for good, " " does not answer.
func answerAll(t *testing.T, manual []*manualNode, kind quorum.AskKind, what string) {
	t.Helper()
	for i, d := range manual {
		switch r := d.nextRequest(t, kind); {
		case what[i] == '+' && kind == quorum.AskRenew:
			r.Kept(0)
		case what[i] == '+' && kind == quorum.AskRelease:
			r.Freed()
		case what[i] == '+':
			r.Granted(100)
		case what[i] == '-':
			r.Denied(int64(time.Minute), "x", 0)
		case what[i] == '!':
			r.Fail(Failure{Err: errDown, Unsent: true})
		case what[i] == '#':
			r.Fail(Failure{Err: errDown, Fatal: true})
		}
	}
}

// A healthy node that had no time to answer is not named.
func TestUnavailableNamesOnlyFailedNodes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		answers string
		wait    bool
		leave   time.Duration // time after which the caller leaves; 0: it stays
		want    string
	}{
		"two fail":                              {"+!!", false, 0, "b: down, c: down"},
		"two fail before the third can answer":  {" !!", false, 0, "b: down, c: down"},
		"two are silent":                        {"+  ", false, 0, "b: no answer in time, c: no answer in time"},
		"one fails, and one is silent":          {"+! ", false, 0, "b: down, c: no answer in time"},
		"two refuse for good":                   {"-##", true, 0, "b: down, c: down"},
		"the caller leaves soon":                {"+  ", true, time.Millisecond, ""},
		"the caller leaves though one has left": {"!  ", true, time.Millisecond, ""},
		"the caller leaves late":                {"+  ", true, 600 * time.Millisecond, "b: no answer in time, c: no answer in time"},
		"the caller leaves an outage":           {"+!!", true, time.Millisecond, "b: down, c: down"},
	} {
		t.Run(name, func(t *testing.T) {
			runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
				ctx := t.Context()
				if row.leave != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, row.leave)
					defer cancel()
				}
				go answerAll(t, manual, quorum.AskAcquire, row.answers)
				_, err := e.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: !row.wait})
				if got := blamedNodes(err); got != row.want || errors.Is(err, driver.ErrUnavailable) != (row.want != "") {
					t.Errorf("error = %v, names %q, want %q", err, got, row.want)
				}
				if row.leave != 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error = %v, want the context's error", err)
				}
			})
		})
	}
	for answers, want := range map[string]string{
		"+! ": "b: down, c: no answer in time",
		"!! ": "a: down, b: down",
	} {
		t.Run("renewal "+answers, func(t *testing.T) {
			runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
				out := startRenewal(t, e, acquireAll(t, e, manual))
				answerAll(t, manual, quorum.AskRenew, answers)
				if err := receiveSoon(t, out); blamedNodes(err) != want {
					t.Errorf("error = %v, want %q", err, want)
				}
			})
		})
	}
	for answers, want := range map[string]string{
		"!! ": "a: down, b: down",
		"+  ": "b: no answer in time, c: no answer in time",
	} {
		t.Run("release "+answers, func(t *testing.T) {
			runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
				g := acquireAll(t, e, manual)
				out := make(chan error, 1)
				go func() { out <- e.Release(t.Context(), g, 0) }()
				answerAll(t, manual, quorum.AskRelease, answers)
				if err := receiveSoon(t, out); blamedNodes(err) != want {
					t.Errorf("error = %v, want %q", err, want)
				}
			})
		})
	}
}

// A slow callback does not delay the claim.
func TestObstaclesAreReportedAsTheyChange(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		reported := make(chan string)
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan error, 1)
		go func() {
			_, err := e.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, OnObstacle: func(err error) {
				reported <- err.Error() // read only at the end
			}})
			out <- err
		}()
		for _, answers := range []string{"---", "-+-", "!!!", "!!-", "---"} {
			for i, d := range manual {
				r := d.nextAcquire(t)
				switch answers[i] {
				case '-':
					r.Denied(int64(time.Minute), "x", 0)
				case '+':
					r.Granted(100)
				default:
					r.Fail(Failure{Err: errDown, Unsent: true})
				}
			}
		}
		synctest.Wait()
		for _, want := range []string{`held by "x"`, "need 2 nodes: nodes a, b: down", `held by "x"`} {
			if got := <-reported; got != want {
				t.Errorf("reported %q, want %q", got, want)
			}
		}
		cancel()
		if err := receiveSoon(t, out); !errors.Is(err, driver.ErrHeld) || !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire = %v, want the last obstacle and the cancellation", err)
		}
	})
}

func TestEndedWaitNamesLastObstacle(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		rounds []string
		is     error
		want   string
	}{
		"a holder":             {[]string{"!!!", "---"}, driver.ErrHeld, `context canceled: held by "x"`},
		"an outage":            {[]string{"---", "!!-"}, driver.ErrUnavailable, "context canceled: need 2 nodes: nodes a, b: down"},
		"an outage, otherwise": {[]string{"!!-", "!-!"}, driver.ErrUnavailable, "context canceled: need 2 nodes: nodes a, c: down"},
	} {
		t.Run(name, func(t *testing.T) {
			runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
				ctx, cancel := context.WithCancel(t.Context())
				out := make(chan error, 1)
				go func() {
					_, err := e.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
					out <- err
				}()
				for _, answers := range row.rounds {
					for i, d := range manual {
						if r := d.nextAcquire(t); answers[i] == '-' {
							r.Denied(int64(time.Minute), "x", 0)
						} else {
							r.Fail(Failure{Err: errDown, Unsent: true})
						}
					}
				}
				synctest.Wait()
				cancel()
				if err := receiveSoon(t, out); err.Error() != row.want || !errors.Is(err, row.is) {
					t.Errorf("Acquire = %v, want %q", err, row.want)
				}
			})
		})
	}
}
