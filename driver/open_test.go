package driver_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// errOpened is returned by the engine of these tests, to show which URL it got.
type errOpened struct {
	url  string
	opts driver.OpenOptions
}

func (e errOpened) Error() string { return "opened " + e.url }

func init() {
	open := func(_ context.Context, url string, opts *driver.OpenOptions) (driver.Driver, error) {
		return nil, errOpened{url, *opts}
	}
	driver.Register(open, "fake", "fake+sentinel")
}

func TestOpenUsesEngineOfScheme(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"fake://host:1", " fake+sentinel://host/name", "fake:/path", "fake://one fake://two",
		"Fake://host", "fakes://host", "fake-sentinel://host", "fak://host", // similar schemes: the engine's own error tells what to write
	} {
		drv, err := driver.Open(t.Context(), url, &driver.OpenOptions{ClientName: "me"})
		if got, ok := errors.AsType[errOpened](err); !ok || drv != nil || got.url != url || got.opts.ClientName != "me" {
			t.Errorf("Open(%q) = %v, %v", url, drv, err)
		}
	}
}

func TestOpenNamesMissingImport(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://:secret@host":           `import _ "github.com/holdfast-go/holdfast/redis"`,
		"rediss+cluster://:secret@host":  `import _ "github.com/holdfast-go/holdfast/redis"`,
		"mariadb+unix://:secret@/socket": `import _ "github.com/holdfast-go/holdfast/sqllock/mysql"`,
		"sqlite:/secret":                 `import _ "github.com/holdfast-go/holdfast/sqllock/sqlite"`,
		"http://:secret@host":            "does not begin with fake://; not imported from github.com/holdfast-go/holdfast/: redis:// rediss://",
		"ftp://:secret@host":             "sqlite:// needs sqllock/sqlite",
		"postgers://:secret@host":        `no package for postgres:// is imported; add import _ "github.com/holdfast-go/holdfast/postgres"`,
		"secret":                         "does not begin with fake://",
		"user:secret@host":               "does not begin with fake://",
		"":                               "does not begin with fake://",
	} {
		_, err := driver.Open(t.Context(), url, nil)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v, want ErrInvalid with %q", url, err, want)
		}
	}
}

func TestSchemeIsRegisteredOnce(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("RegisterScheme accepted a scheme twice")
		}
	}()
	driver.Register(func(context.Context, string, *driver.OpenOptions) (driver.Driver, error) { return nil, nil }, "fake")
}
