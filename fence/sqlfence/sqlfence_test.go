package sqlfence_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/fence/sqlfence"
)

// The tests that need a database are in the module sqltest in this folder, because this module does not
// require database drivers.

func TestBadSetUpIsRejected(t *testing.T) {
	t.Parallel()
	for table, dialect := range map[string]sqlfence.Dialect{"": 0, "f; DROP TABLE account": sqlfence.SQLite, "a.b.c": sqlfence.MySQL} {
		if f, err := sqlfence.New(dialect, &sqlfence.Options{Table: table}); err == nil {
			t.Errorf("dialect %d with table %q: %+v", dialect, table, f)
		}
	}
}

func TestTableNameIsConfigurable(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{"": " holdfast_fence ", "locks.fence": " locks.fence "} {
		f, err := sqlfence.New(sqlfence.PostgreSQL, &sqlfence.Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(f.Schema(), want) {
			t.Errorf("table %q: %s", table, f.Schema())
		}
	}
}
