package lines

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"
)

func TestLinesOmitEmptyValuesAndNameUnits(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"text": "holdfast: lost held=741.040929ms reason=gone\n",
		"json": `{"level":"WARN","msg":"lost","held":"741.040929ms","reason":"gone"}` + "\n",
	} {
		var out bytes.Buffer
		log := New(&out, format, slog.LevelInfo)
		r := slog.NewRecord(time.Time{}, slog.LevelWarn, "lost", 0)
		r.Add("held", 741040929*time.Nanosecond, "cause", error(nil), "reason", errors.New("gone"))
		if err := log.Handler().Handle(t.Context(), r); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v; want %q", format, out.String(), err, want)
		}
	}
}
