package resp

import (
	"errors"
	"io"
	"net"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

func TestReaderReadsEachKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw  string
		want any
	}{
		{"+OK\r\n", "OK"},
		{"-ERR no\r\n", Error("no")},
		{"!6\r\nERR no\r\n", Error("no")},
		{"-WRONGTYPE no\r\n", Error("WRONGTYPE no")},
		{":-42\r\n", int64(-42)},
		{":99999999999999999999\r\n", "99999999999999999999"},
		{"$5\r\na\r\nbc\r\n", "a\r\nbc"},
		{"$0\r\n\r\n", ""},
		{"$-1\r\n", nil},
		{"*-1\r\n", nil},
		{"_\r\n", nil},
		{"#t\r\n", "t"},
		{",1.5\r\n", "1.5"},
		{"(123\r\n", "123"},
		{"=7\r\ntxt:abc\r\n", "txt:abc"},
		{"*0\r\n", []any{}},
		{"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", []any{int64(1), []any{"x"}}},
		{"%1\r\n+k\r\n:2\r\n", []any{"k", int64(2)}},
		{"~1\r\n+a\r\n", []any{"a"}},
		{">2\r\n+invalidate\r\n_\r\n", []any{"invalidate", nil}},
		{"|1\r\n+ttl\r\n:1\r\n$1\r\nv\r\n", "v"},
	} {
		r := NewReader(strings.NewReader(c.raw + "+next\r\n"))
		v, err := r.ReadValue()
		if err != nil {
			t.Errorf("%q: %v", c.raw, err)
			continue
		}
		if got := v.Decode(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: decoded %#v, want %#v", c.raw, got, c.want)
		}
		if string(v.Raw) != c.raw {
			t.Errorf("%q: raw bytes %q", c.raw, v.Raw)
		}
		if next, err := r.ReadValue(); err != nil || string(next.Text) != "next" {
			t.Errorf("%q: next value %q, %v", c.raw, next.Text, err)
		}
	}
}

func TestMalformedBytesAreRejected(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"hello\r\n", "\r\n", "$x\r\n", "$-2\r\n", "$1\r\nabc", "*1000000000000\r\n", "$999999999999\r\n",
		strings.Repeat("*1\r\n", maxDepth+2), "+" + strings.Repeat("x", 2*maxLine),
	} {
		if _, err := NewReader(strings.NewReader(raw)).ReadValue(); !errors.Is(err, ErrFormat) {
			t.Errorf("%.40q: error %v, want ErrFormat", raw, err)
		}
	}
}

func TestEndOfStreamIsReported(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]error{
		"": io.EOF, "+O": io.ErrUnexpectedEOF, "*2\r\n:1\r\n": io.ErrUnexpectedEOF, "$5\r\n": io.ErrUnexpectedEOF,
	} {
		if _, err := NewReader(strings.NewReader(raw)).ReadValue(); !errors.Is(err, want) {
			t.Errorf("%q: error %v, want %v", raw, err, want)
		}
	}
}

func TestCommandsAreEncoded(t *testing.T) {
	t.Parallel()
	sent := string(AppendCommand(nil, "SET", "a b", "")) + "PING  hello\r\n" + "\r\n"
	r := NewReader(strings.NewReader(sent))
	var seen strings.Builder
	for _, want := range [][]string{{"SET", "a b", ""}, {"PING", "hello"}, nil} {
		args, raw, err := r.ReadCommand()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, arg := range args {
			got = append(got, string(arg))
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("read %q, want %q", got, want)
		}
		seen.Write(raw)
	}
	if seen.String() != sent {
		t.Errorf("raw bytes %q, want %q", seen.String(), sent)
	}
	if _, _, err := r.ReadCommand(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end of the stream: %v, want io.EOF", err)
	}
}

// FuzzReader checks that the reader either rejects bytes, or reads them so that the raw bytes of the values
// equal the stream.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		"+OK\r\n:1\r\n", "*2\r\n$1\r\na\r\n_\r\n", ">1\r\n+x\r\n", "|1\r\n+a\r\n+b\r\n#t\r\n", "%1\r\n+a\r\n,1\r\n", "$-1\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		r, read := NewReader(strings.NewReader(stream)), 0
		for {
			v, err := r.ReadValue()
			if err != nil {
				return
			}
			if len(v.Raw) == 0 || !strings.HasPrefix(stream[read:], string(v.Raw)) {
				t.Fatalf("value %q is not at byte %d", v.Raw, read)
			}
			read += len(v.Raw)
			v.Decode()
		}
	})
}

// A net.Pipe buffers nothing. A server that answers each command at once waits for a client that is still
// writing.
func TestUnbufferedConnectionCarriesSeveralCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			in := NewReader(server)
			for range 3 {
				args, _, err := in.ReadCommand()
				if err != nil {
					return
				}
				server.Write(append(append([]byte("+"), args[0][:1]...), "\r\n"...))
			}
		}()
		c := NewConn(client)
		defer c.Close()
		long := strings.Repeat("b", 2*bufferSize)
		values, err := c.Do([]string{"a"}, []string{long}, []string{"c"})
		if err != nil || len(values) != 3 || string(values[2].Text) != "c" {
			t.Errorf("Do() = %v, %v", values, err)
		}
		if _, err := c.Do([]string{"d"}); !errors.Is(err, io.EOF) {
			t.Errorf("after the end of the stream: %v", err)
		}
	})
}

// A server at its limit of clients sends an error and closes the connection.
func TestErrorReplyBeforeEndIsReported(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		there.Write([]byte("-ERR max number of clients reached\r\n"))
		there.Close()
	}()
	_, err := NewConn(here).Do([]string{"AUTH", "x"}, []string{"HELLO", "3"})
	if err == nil || !strings.Contains(err.Error(), "max number of clients reached, and then: HELLO: EOF") || !errors.Is(err, io.EOF) {
		t.Errorf("Do() = %v", err)
	}
}

// endlessStream is a stream that begins with head and repeats body until most bytes have been read. It records the
// most memory that was live meanwhile.
type endlessStream struct {
	head, body string
	most       int

	read, looked int
	live         uint64
}

func (e *endlessStream) Read(b []byte) (n int, err error) {
	if e.read >= e.most {
		return 0, io.EOF
	}
	for ; n < len(b); n++ {
		switch at := e.read + n; {
		case at < len(e.head):
			b[n] = e.head[at]
		default:
			b[n] = e.body[(at-len(e.head))%len(e.body)]
		}
	}
	if e.read += n; e.read-e.looked > 1<<20 {
		e.looked = e.read
		e.live = max(e.live, liveBytes())
	}
	return n, nil
}

func liveBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The test is not parallel, because it measures the memory of the process.
func TestValueFitsItsMemoryLimit(t *testing.T) {
	const slack = 1 << 20
	for _, c := range []struct{ head, body string }{
		{"*1073741824\r\n", "_\r\n"},
		{"*1000000\r\n", "_\r\n"},
		{"%500000\r\n", "#t\r\n"},
		{"|1000000\r\n", "_\r\n"},
		{">1000000\r\n", "_\r\n"},
		{"*30000\r\n", "*1000\r\n" + strings.Repeat("_\r\n", 1000)},
		{"*40000\r\n", "+" + strings.Repeat("x", 60000) + "\r\n"},
		{"*40000\r\n", "$3000\r\n" + strings.Repeat("x", 3000) + "\r\n"},
		{"$500000000\r\n", "x"},
		{">1\r\n$500000000\r\n", "x"},
		{"*2\r\n:1\r\n$500000000\r\n", "x"},
	} {
		stream := &endlessStream{head: c.head, body: c.body, most: 24 << 20}
		before := int64(liveBytes())
		r := NewReader(stream)
		r.Room = func() int { return ReplyRoom }
		v, err := r.ReadValue()
		took := int64(max(stream.live, liveBytes())) - before
		t.Logf("%q and then %.10q: %d kB", c.head, c.body, took>>10)
		if took > ReplyRoom+slack {
			t.Errorf("%q and then %.10q: %d kB in memory after %d kB of the stream", c.head, c.body, took>>10, stream.read>>10)
		}
		if err == nil {
			t.Errorf("%q and then %.10q: parsed as %q", c.head, c.body, v.Text)
		}
		runtime.KeepAlive(v)
	}
}

// The reader continues after the text, which may be another program's value.
func TestOversizedTextDoesNotEndStream(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", ReplyRoom)
	r := NewReader(strings.NewReader("*2\r\n:1\r\n$" + strconv.Itoa(len(long)) + "\r\n" + long + "\r\n+next\r\n"))
	r.Room = func() int { return ReplyRoom }
	v, err := r.ReadValue()
	if err != nil || len(v.Elems) != 2 || !v.Elems[1].IsError() || !strings.Contains(string(v.Elems[1].Text), "TOOLONG") {
		t.Errorf("read %.100v, %v, want an error in place of the text", v.Decode(), err)
	}
	if v, err := r.ReadValue(); err != nil || string(v.Text) != "next" {
		t.Errorf("next value: %q, %v", v.Text, err)
	}
}
