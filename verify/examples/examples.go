// Package examples is what the tests of the examples share.
package examples

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redlock"
)

// ACL is a user that the servers of the examples have.
var ACL = []string{"app on >s3cret ~* &* +@all"}

// Admit lets the nodes at url vote at once, which otherwise are new.
func Admit(t *testing.T, url string) {
	t.Helper()
	drv, err := redlock.Open(t.Context(), url, &redlock.Options{NoQuarantine: true, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := drv.Close(); err != nil {
		t.Fatal(err)
	}
}

// Lock acquires and releases a lock by what an example returns, and wants the connection to server to be that of the
// user, the database and the name of the program's client.
func Lock(t *testing.T, server *redisproc.Server, db int) func(locks *holdfast.Client, err error) {
	return func(locks *holdfast.Client, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		lease, err := locks.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := server.Do("CLIENT", "LIST")
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(fmt.Sprintf("name=billing .* db=%d .* user=app ", db)).MatchString(fmt.Sprint(list)) {
			t.Errorf("no connection is that of the program's user, database and name:\n%v", list)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
