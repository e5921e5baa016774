package release

import (
	"testing"

	"github.com/holdfast-go/holdfast"
)

func busy(t *testing.T, client *holdfast.Client) {
	if _, err := client.TryAcquire(t.Context(), "k", nil); err == nil {
		t.Error("the lock is free")
	}
}
