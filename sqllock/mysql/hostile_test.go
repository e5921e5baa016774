package mysql_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

// serverPacket encodes one packet of a server.
func serverPacket(number byte, body ...byte) []byte {
	n := len(body)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), number}, body...)
}

// greeting asks a client for a login by mysql_native_password.
var greeting = serverPacket(0, bytes.Join([][]byte{
	{10},
	[]byte("8.0.99\x00"),
	{1, 0, 0, 0},
	[]byte("12345678\x00"),
	{0xff, 0xf7},
	{45, 2, 0},
	{0xff, 0x01},
	{21},
	make([]byte, 10), []byte("901234567890\x00"), []byte("mysql_native_password\x00"),
}, nil)...)

func politeGreeting() []byte { return greeting }

// okPacket encodes an OK packet.
func okPacket(number byte) []byte { return serverPacket(number, 0, 0, 0, 2, 0, 0, 0) }

// startFakeServer starts a server that sends greet to each client and answers each statement by talk. It returns
// its URL.
func startFakeServer(t testing.TB, greet func() []byte, talk func(conn net.Conn, statement []byte)) string {
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
				conn.Write(greet())
				for number := byte(2); ; number = 1 {
					head := make([]byte, 4)
					if _, err := io.ReadFull(conn, head); err != nil {
						return
					}
					statement := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
					if _, err := io.ReadFull(conn, statement); err != nil {
						return
					}
					if number == 2 {
						conn.Write(okPacket(number))
						continue
					}
					talk(conn, statement)
				}
			}()
		}
	}()
	return "mysql://u:p@" + l.Addr().String() + "/db"
}

// The connection ends before the driver allocates memory for the announced size.
func TestHugeAnswerReturnsError(t *testing.T) {
	t.Parallel()
	for want, answer := range map[string][]byte{
		"more columns":   serverPacket(1, 0xfc, 0xfb, 0),
		"more than 8 MB": {0xff, 0xff, 0xff, 1},
	} {
		url := startFakeServer(t, politeGreeting, func(conn net.Conn, _ []byte) { conn.Write(answer) })
		d, err := mysql.Open(t.Context(), url, &mysql.Options{NoCheck: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if _, err := d.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("Inspect() = %v, want ErrUnavailable with %q", err, want)
		}
	}
}

// The caller gets the disk-full error at once, not after the TTL.
func TestRenewalOnFullDatabaseReturnsAtOnce(t *testing.T) {
	t.Parallel()
	url := startFakeServer(t, politeGreeting, func(conn net.Conn, _ []byte) {
		conn.Write(serverPacket(1, append([]byte{0xff, 0x5a, 0x04, '#'}, "HY000The table 'holdfast_lock' is full"...)...)) // 1114
	})
	d, err := mysql.Open(t.Context(), url, &mysql.Options{NoCheck: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r := d.Renew(t.Context(), []driver.Grant{{Key: "k", Owner: "o", TTL: time.Hour}})[0] // a retry would go on for an hour
	if !errors.Is(r.Err, driver.ErrUnavailable) || !strings.Contains(r.Err.Error(), "make room on the disk") {
		t.Errorf("Renew() = %v, want that the disk is full", r.Err)
	}
}

// FuzzServer: whatever the server sends, each call ends in time without a panic.
func FuzzServer(f *testing.F) {
	answers, greetings := make(chan []byte, 1), make(chan []byte, 1)
	url := startFakeServer(f, func() []byte {
		select {
		case g := <-greetings:
			return g
		default:
			return greeting
		}
	}, func(conn net.Conn, _ []byte) {
		select {
		case answer := <-answers:
			conn.Write(answer)
			conn.Close() // else a client that expects more waits until its context ends
		default:
			conn.Write(okPacket(1))
		}
	})
	d, err := mysql.Open(context.Background(), url, &mysql.Options{NoCheck: true})
	if err != nil {
		f.Fatal(err)
	}
	defer d.Close()
	f.Add(false, []byte{})
	f.Add(false, serverPacket(1, 0, 0, 0, 2, 0, 0, 0))
	f.Add(false, serverPacket(1, append([]byte{0xff, 0xbd, 0x04, '#'}, "HY000lock wait"...)...))
	f.Add(false, bytes.Join([][]byte{
		serverPacket(1, 1), serverPacket(2, []byte("\x03def\x00\x00\x00\x01x\x00\x0c\x3f\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00")...),
		serverPacket(3, 0xfe, 0, 0, 2, 0), serverPacket(4, 1, '1'), serverPacket(5, 0xfe, 0, 0, 2, 0),
	}, nil))
	f.Add(true, greeting)
	f.Add(true, serverPacket(0, append([]byte{0xff, 0x10, 0x04}, "Too many connections"...)...))
	f.Fuzz(func(t *testing.T, greets bool, bytes []byte) {
		into := answers
		if greets {
			into = greetings
		}
		select {
		case into <- bytes:
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		defer time.AfterFunc(20*time.Second, func() { panic("the call does not end") }).Stop()
		if _, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true}); err == nil {
			t.Error("a server without tables granted a lock")
		}
	})
}
