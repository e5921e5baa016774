package postgres_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/postgres"
)

// serverMessage encodes one message of a server.
func serverMessage(kind byte, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

// greeting accepts any client.
var greeting = bytes.Join([][]byte{serverMessage('R', 0, 0, 0, 0), serverMessage('K', 0, 0, 0, 1, 0, 0, 0, 2), serverMessage('Z', 'I')}, nil)

// startFakeServer starts a server that accepts each client and then sends what talk writes. It returns its
// address.
func startFakeServer(t testing.TB, talk func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if n, err := conn.Read(make([]byte, 4096)); err != nil || n == 16 { // 16 bytes: a request to cancel a statement
					return
				}
				conn.Write(greeting)
				if _, err := conn.Read(make([]byte, 4096)); err == nil {
					talk(conn)
				}
			}()
		}
	}()
	return "postgres://" + l.Addr().String() + "/db?sslmode=disable"
}

// The client ends the connection after a few MB, whether the answer is one message or many.
func TestEndlessAnswerReturnsError(t *testing.T) {
	t.Parallel()
	description := serverMessage('T', append([]byte{0, 1, 'x', 0}, make([]byte, 18)...)...)
	row := bytes.Repeat(serverMessage('D', 0, 1, 0, 0, 0, 1, 't'), 1000)
	started := bytes.Join([][]byte{serverMessage('1'), serverMessage('2'), description}, nil)
	for want, first := range map[string][]byte{
		"more than 8 MB":  started,
		"at most 1048576": append(bytes.Clone(started), 'D', 0x7f, 0xff, 0xff, 0xff),
	} {
		url := startFakeServer(t, func(conn net.Conn) {
			conn.Write(first)
			for range 1000 {
				if _, err := conn.Write(row); err != nil {
					return
				}
			}
		})
		d, err := postgres.Open(t.Context(), url, &postgres.Options{NoCheck: true, NoListen: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.AnyVersion()
		if err := d.Check(t.Context(), driver.Grant{Key: "k", Owner: "o"}); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want ErrUnavailable with %q", err, want)
		}
	}
}

// pgx keeps each setting that a server reports, and copies notifications.
func TestEndlessNotificationsEndConnection(t *testing.T) {
	t.Parallel()
	for _, news := range []struct {
		want    string
		message func(i int) []byte
	}{
		{"reports settings without end", func(i int) []byte { return serverMessage('S', []byte("setting"+strconv.Itoa(i)+"\x00on\x00")...) }},
		{"reports settings without end", func(i int) []byte {
			return serverMessage('S', []byte(strconv.Itoa(i%10)+strings.Repeat("x", 100<<10)+"\x00on\x00")...)
		}},
		{"a notification that is too long", func(i int) []byte {
			return serverMessage('A', []byte("\x00\x00\x00\x01a\x00"+strings.Repeat("x", min(8000*i, 80_000))+"\x00")...)
		}},
	} {
		url := startFakeServer(t, func(conn net.Conn) {
			for i := range 20_000 {
				if _, err := conn.Write(news.message(i)); err != nil {
					return
				}
			}
			conn.Read(make([]byte, 4096)) // until the client has gone
		})
		d, err := postgres.Open(t.Context(), url, &postgres.Options{NoCheck: true, NoListen: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.AnyVersion()
		if err := d.Check(t.Context(), driver.Grant{Key: "k", Owner: "o"}); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), news.want) {
			t.Errorf("Check() = %v, want ErrUnavailable with %q", err, news.want)
		}
	}
}

// A server reports each change of a setting, and a connection may live for years.
func TestChangedSettingsKeepConnection(t *testing.T) {
	t.Parallel()
	url := startFakeServer(t, func(conn net.Conn) {
		var all []byte
		for i := range 20_000 { // 600 KB
			all = append(all, serverMessage('S', []byte("setting"+strconv.Itoa(i%20)+"\x00"+strconv.Itoa(i)+"\x00")...)...)
		}
		conn.Write(append(all, serverMessage('E', []byte("SERROR\x00C55P03\x00Mreached\x00\x00")...)...))
		conn.Write(serverMessage('Z', 'I'))
		conn.Read(make([]byte, 4096)) // until the client has gone
	})
	d, err := postgres.Open(t.Context(), url, &postgres.Options{NoCheck: true, NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.AnyVersion()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Check(ctx, driver.Grant{Key: "k", Owner: "o"}); err == nil || !strings.Contains(err.Error(), "reached") {
		t.Errorf("Check() = %v, want the error after the settings", err)
	}
}

// PostgreSQL has no error codes of this class, so another database has answered.
func TestUnknownErrorCodeNamesOtherServer(t *testing.T) {
	t.Parallel()
	refused := serverMessage('E', []byte("SERROR\x00C90022\x00MFunction \"pg_advisory_xact_lock\" not found\x00\x00")...)
	url := startFakeServer(t, func(conn net.Conn) {
		conn.Write(append(refused, serverMessage('Z', 'I')...))
		conn.Read(make([]byte, 4096)) // until the client has read it
	})
	d, err := postgres.Open(t.Context(), url, &postgres.Options{NoCheck: true, NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const want = "not a server that only speaks its protocol"
	if err := d.Migrate(t.Context()); !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), want) {
		t.Errorf("Migrate() = %v, want ErrConfig with %q", err, want)
	}
}

// A server that only speaks the protocol may answer without a row. The program must not panic.
func TestAnswerWithoutRowReturnsError(t *testing.T) {
	t.Parallel()
	url := startFakeServer(t, func(conn net.Conn) {
		conn.Write(bytes.Join([][]byte{serverMessage('1'), serverMessage('2'), serverMessage('n'), serverMessage('C', 'S', 0), serverMessage('Z', 'I')}, nil))
		conn.Read(make([]byte, 4096)) // until the client has read it
	})
	d, err := postgres.Open(t.Context(), url, &postgres.Options{NoCheck: true, NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.AnyVersion()
	ctx, cancel := context.WithTimeout(t.Context(), pace.Scale(time.Second))
	defer cancel()
	const want = "the answer has no row"
	_, err = d.Acquire(ctx, driver.Request{Key: "k", TTL: time.Hour, NoWait: true})
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), want) {
		t.Errorf("Acquire() = %v, want ErrUnavailable with %q", err, want)
	}
	if _, err := d.Adopt(ctx, driver.Grant{Key: "k", Owner: driver.MarkAdoptable("o"), TTL: time.Hour}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Adopt() = %v, want %q", err, want)
	}
}

// While a database is down for long and locks expire, the driver keeps no memory for their releases.
func TestExpiredReleaseFreesMemory(t *testing.T) {
	t.Parallel()
	d, err := postgres.Open(t.Context(), "postgres://127.0.0.1:1/db?sslmode=disable", &postgres.Options{NoCheck: true, NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.NoteDoubt("o")
	if err := d.Release(t.Context(), driver.Grant{Key: "k", Owner: "o", TTL: 100 * time.Millisecond}, 0); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release() = %v, want ErrUnavailable", err)
	}
	if n := d.DoubtedOwners(); n != 0 {
		t.Errorf("%d owners are remembered, want none", n)
	}
}

// The caller ended the wait, not the server, so the next wait may open a connection at once.
func TestEndedWaitDoesNotDelayReconnect(t *testing.T) {
	t.Parallel()
	d, err := postgres.Open(t.Context(), startSilent(t), &postgres.Options{NoCheck: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if ready, err := d.EndWaitForConnection(); err != nil || !ready {
		t.Errorf("the next wait may open a connection: %v, %v", ready, err)
	}
}

// startSilent starts a server that accepts connections and sends nothing. It returns its address.
func startSilent(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "postgres://" + l.Addr().String() + "/db?sslmode=disable"
}

// The caller gets the disk-full error at once, not after the TTL.
func TestRenewalOnFullDatabaseReturnsAtOnce(t *testing.T) {
	t.Parallel()
	said := append([]byte("SERROR\x00VERROR\x00C53100\x00Mcould not extend file: No space left on device\x00"), 0)
	url := startFakeServer(t, func(conn net.Conn) {
		conn.Write(append(serverMessage('E', said...), serverMessage('Z', 'I')...))
		conn.Read(make([]byte, 4096)) // until the client has read it
	})
	d, err := postgres.Open(t.Context(), url, &postgres.Options{NoCheck: true, NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.AnyVersion()
	r := d.Renew(t.Context(), []driver.Grant{{Key: "k", Owner: "o", TTL: time.Hour}})[0] // a retry would go on for an hour
	if !errors.Is(r.Err, driver.ErrUnavailable) || !strings.Contains(r.Err.Error(), "make room on the disk") {
		t.Errorf("Renew() = %v, want that the disk is full", r.Err)
	}
}

// A row with invalid values of another program does not hide other rows.
func TestListSkipsInvalidRow(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.AcquireGrant(d, "sound", endlessTTL)
	odd := map[string]string{
		"a text": `'"text"', now(), now() + interval '1 hour'`, "a list": `'[1]', now(), now() + interval '1 hour'`,
		"a number": `'{"pid": "x"}', now(), now() + interval '1 hour'`,
		"for ever": `'{}', '-infinity', 'infinity'`, "later": `'{}', 'infinity', now() + interval '1 hour'`, "over": `'{}', now(), '-infinity'`,
	}
	for name, values := range odd {
		r.execSQL("INSERT INTO holdfast.lock (name, token, owner, holder, since, expires, queued) "+
			"SELECT $1, 1, 'x', h::jsonb, s::timestamptz, e::timestamptz, false FROM (VALUES ("+values+")) v (h, s, e)", name)
	}
	found := make(map[string]bool)
	r.NoError(d.List(r.WaitContext(), "", func(st driver.Status) bool {
		found[st.Key] = true
		return true
	}))
	for _, name := range []string{"sound", "a text", "a list", "a number", "for ever", "later"} {
		if !found[name] {
			t.Errorf("the list omits %q", name)
		}
		if _, err := d.Inspect(r.WaitContext(), name); err != nil {
			t.Errorf("Inspect(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"a text", "a list", "a number"} {
		_, err := d.Acquire(r.WaitContext(), driver.Request{Key: name, TTL: endlessTTL, NoWait: true})
		if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Owner != "x" {
			t.Errorf("Acquire(%q) = %v, want that it is held", name, err)
		}
	}
}

// FuzzNotification: a payload blocks nothing, and raises an alert only if it has the form of an alert.
func FuzzNotification(f *testing.F) {
	pool, err := pgxpool.New(context.Background(), "host=127.0.0.1 port=1 sslmode=disable")
	if err != nil {
		f.Fatal(err)
	}
	defer pool.Close()
	d, err := postgres.New(context.Background(), pool, &postgres.Options{NoCheck: true, NoListen: true})
	if err != nil {
		f.Fatal(err)
	}
	defer d.Close()
	for _, payload := range []string{"", "a.b", "a.b forced ", "a.b forced why", " forced  forced ", "a.b forced \x1b[2J\n", "forced", "\xff forced \x00"} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		alerts := 0
		d.Alert(func(owner, why string) {
			alerts++
			if owner+" forced "+why != payload {
				t.Errorf("%q alerts %q of %q", payload, owner, why)
			}
		})
		wake := d.WaitForWake(payload)
		for range 3 { // nobody reads the wake-up, so the channel is full after the first
			d.HandlePayload(payload)
		}
		select {
		case <-wake:
		default:
			t.Errorf("%q notified no waiter with that name", payload)
		}
		if want := 3 * min(strings.Count(payload, " forced "), 1); alerts != want {
			t.Errorf("%q alerts %d times, want %d", payload, alerts, want)
		}
	})
}

// FuzzServer: whatever the server answers, the call ends in time without a panic.
func FuzzServer(f *testing.F) {
	answers := make(chan []byte, 1)
	url := startFakeServer(f, func(conn net.Conn) {
		select {
		case answer := <-answers:
			conn.Write(answer)
		default:
		}
	})
	d, err := postgres.Open(context.Background(), url, &postgres.Options{NoCheck: true})
	if err != nil {
		f.Fatal(err)
	}
	defer d.Close()
	d.AnyVersion()
	f.Add([]byte{})
	f.Add(serverMessage('A', 0, 0, 0, 1, 'a', 0, 'b', 0))
	f.Add(bytes.Join([][]byte{serverMessage('1'), serverMessage('2'), serverMessage('n'), serverMessage('C', 'S', 0), serverMessage('Z', 'I')}, nil))
	f.Add(bytes.Join([][]byte{
		serverMessage('1'), serverMessage('2'), serverMessage('T', append([]byte{0, 1, 'x', 0}, make([]byte, 18)...)...), serverMessage('D', 0, 1, 0, 0, 0, 1, 't'),
		serverMessage('C', 'S', 0), serverMessage('Z', 'I'),
	}, nil))
	f.Add(serverMessage('E', 'S', 'E', 'R', 'R', 'O', 'R', 0, 'C', '4', '0', '0', '0', '1', 0, 0))
	f.Add(serverMessage('S', 'a', 0, 'b', 0))
	f.Add(serverMessage('v', 0, 0, 0, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, answer []byte) {
		select {
		case answers <- answer:
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := d.Check(ctx, driver.Grant{Key: "k", Owner: "o"}); err == nil && !bytes.Contains(answer, []byte{'D', 0}) {
			t.Errorf("an answer without a row kept the lease: %q", answer)
		}
	})
}
