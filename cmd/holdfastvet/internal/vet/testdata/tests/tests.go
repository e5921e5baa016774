// Package tests helps tests, so the analyzers skip it.
package tests

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// Busy needs a held lock.
func Busy(t *testing.T, client *holdfast.Client) {
	if _, err := client.TryAcquire(context.Background(), "k", nil); err == nil {
		t.Error("the lock is free")
	}
}
