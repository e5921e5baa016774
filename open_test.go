package holdfast_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
)

func TestOpenRejectsUnknownURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                 "no URL",
		"http://localhost":                 "an example: redis://localhost:6379",
		"etcd://localhost":                 "holdfast/etcd", // this program does not import its package
		"a=redis://localhost redis://two":  "NAME=",
		"redis-sentinel://localhost/name":  "redis+sentinel://",
		"redis://localhost:6379/0?pasword": "the nearest that is known is password",
	} {
		client, err := holdfast.Open(t.Context(), url, nil)
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) || client != nil {
			t.Errorf("Open(%q): %v, want ErrInvalid with %q", url, err, want)
		}
	}
}

func TestOpenSucceedsWhileServiceIsDown(t *testing.T) {
	t.Parallel()
	silent := &holdfast.Options{Logger: slog.New(slog.DiscardHandler)}
	for _, url := range []string{"redis://127.0.0.1:1", "a=redis://127.0.0.1:1 b=redis://127.0.0.1:2"} {
		client, err := holdfast.Open(t.Context(), url, silent)
		if err != nil {
			t.Errorf("Open(%q): %v", url, err)
			continue
		}
		if _, err := client.TryAcquire(t.Context(), "k", nil); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("TryAcquire over %q: %v, want ErrUnavailable", url, err)
		}
		client.Close()
	}
}

func TestOpenFailsIfURLRefusesOutage(t *testing.T) {
	t.Parallel()
	client, err := holdfast.Open(t.Context(), "redis://127.0.0.1:1?down=refuse", nil)
	if !errors.Is(err, holdfast.ErrUnavailable) || client != nil {
		t.Errorf("Open of a server that is down: %v, want ErrUnavailable", err)
	}
}
