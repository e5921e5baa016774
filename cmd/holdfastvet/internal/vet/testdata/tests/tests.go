// Package tests helps tests: nothing in it is looked at.
package tests

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// Busy wants a lock to be held.
func Busy(t *testing.T, client *holdfast.Client) {
	if _, err := client.TryAcquire(context.Background(), "k", nil); err == nil {
		t.Error("the lock is free")
	}
}
