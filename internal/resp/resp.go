// Package resp reads and writes RESP2 and RESP3, the wire formats of Redis and Valkey, one value at a time.
//
// It does not support the streamed strings and aggregates of RESP3, because no server sends them.
package resp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ErrFormat is returned, wrapped, for bytes that are not RESP. The rest of the stream cannot be read.
var ErrFormat = errors.New("not RESP")

const (
	maxDepth  = 32        // levels of nested aggregates
	maxBulk   = 512 << 20 // bytes in one string: the server's own limit
	maxLine   = 64 << 10  // bytes in a line: the server's limit for inline commands and lengths
	maxCount  = 1 << 30   // elements of one aggregate, far more than fit
	chunkSize = 64 << 10  // bytes requested at once, so that a length alone reserves no memory

	bufferSize = 16 << 10 // bytes read from the connection at once
	maxReuse   = 64 << 10 // bytes of a value whose memory Next reuses
)

// The memory that one value may take, decoded form included. A client cannot use a server that sends more. A
// single string that is too long may be another program's value, so only the string is dropped.
const (
	PushRoom    = 64 << 10
	ReplyRoom   = 8 << 20
	ListingRoom = 96 << 20 // CLUSTER SLOTS of 16,384 ranges with three servers each takes 75 MB

	elementRoom = 128 // a Value, and its decoded form
	byteRoom    = 3   // a byte in Raw while that grows, and in the decoded form
)

// tooLongText is the error that replaces a string that did not fit.
const tooLongText = "TOOLONG the server has sent a text of %d bytes, more than fits here"

// Error is an error reply of the server, without the leading '-': "NOAUTH Authentication required."
type Error string

func (e Error) Error() string { return string(e) }

// Value is one value of the stream, with its contents.
type Value struct {
	Kind  byte    // the first byte: + - : $ * _ # , ( ! = % ~ >
	Null  bool    // $-1, *-1 or _
	Text  []byte  // of a scalar, without kind and line end
	Elems []Value // of an aggregate; a map has its keys and values in turns
	Raw   []byte  // all bytes of the value, including attributes before it; shared with Text
}

// IsError reports whether the value is an error reply.
func (v Value) IsError() bool { return v.Kind == '-' || v.Kind == '!' }

// Int returns the value of an integer. ok is false for any other kind.
func (v Value) Int() (n int64, ok bool) {
	if v.Kind != ':' {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.Text), 10, 64)
	return n, err == nil
}

// Decode converts the value to nil, string, int64, []any or Error. Doubles, big numbers and booleans stay
// strings, a map becomes a list of its keys and values, and an integer that does not fit an int64 becomes a
// string.
func (v Value) Decode() any {
	switch {
	case v.Null:
		return nil
	case v.IsError():
		return v.Err()
	case v.Kind == ':':
		if n, ok := v.Int(); ok {
			return n
		}
	case isAggregate(v.Kind):
		list := make([]any, len(v.Elems))
		for i, elem := range v.Elems {
			list[i] = elem.Decode()
		}
		return list
	}
	return string(v.Text)
}

// Err returns an error reply without the prefix "ERR ".
func (v Value) Err() Error { return Error(strings.TrimPrefix(string(v.Text), "ERR ")) }

// IsErrorCode reports whether a decoded reply is an error with that code, such as NOSCRIPT.
func IsErrorCode(reply any, code string) bool {
	err, ok := reply.(error)
	return ok && strings.HasPrefix(err.Error(), code)
}

// The reasons why a reply is not an answer to the command.
var (
	ErrShape  = errors.New("not what the script answers")
	ErrNumber = errors.New("not a number")
)

// Unexpected returns the error for a reply that is not an answer to the command.
func Unexpected(why error) error { return fmt.Errorf("unexpected reply: %w", why) }

// AppendCommand appends a command in the form that every server reads: an array of strings.
func AppendCommand(dst []byte, args ...string) []byte {
	dst = AppendArray(dst, len(args))
	for _, arg := range args {
		dst = AppendString(dst, arg)
	}
	return dst
}

// AppendArray appends the header of an array of n values, which the caller appends next.
func AppendArray(dst []byte, n int) []byte { return appendLength(dst, '*', n) }

// AppendString appends a string.
func AppendString(dst []byte, s string) []byte {
	return append(append(appendLength(dst, '$', len(s)), s...), "\r\n"...)
}

// AppendDecimal appends n as a string of decimal digits, as commands have their numbers.
func AppendDecimal(dst []byte, n int64) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], n, 10)
	return append(append(appendLength(dst, '$', len(text)), text...), "\r\n"...)
}

func appendLength(dst []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(dst, kind), int64(n), 10), "\r\n"...)
}

// Reader reads values from one connection. It is not safe for concurrent use.
type Reader struct {
	in   *bufio.Reader
	raw  []byte // of the present value
	room int    // memory that the present value may take
	left int    // remaining part of room

	// Room, if not nil, returns how much memory the next value may take, unless it is a push. It is called
	// when the value begins to arrive. nil: ListingRoom.
	Room func() int
}

// NewReader returns a Reader with its own buffer.
func NewReader(in io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(in, bufferSize)} }

// ReadValue blocks until a whole value has arrived. At the end of the stream it returns io.EOF between two values and
// io.ErrUnexpectedEOF within one.
func (r *Reader) ReadValue() (Value, error) {
	r.raw = nil
	return r.readValue()
}

// Next is ReadValue for a caller that no longer needs the last value: the next value reuses the memory of its
// Text and Raw.
func (r *Reader) Next() (Value, error) {
	if r.raw = r.raw[:0]; cap(r.raw) > maxReuse {
		r.raw = nil
	}
	return r.readValue()
}

// Took returns how much memory the last value took, counted as Room counts it.
func (r *Reader) Took() int { return r.room - r.left }

// startValue sets the room for the next value, of the given kind.
func (r *Reader) startValue(kind byte) {
	r.room = ListingRoom
	switch {
	case kind == '>':
		r.room = PushRoom
	case r.Room != nil:
		r.room = r.Room()
	}
	r.left = r.room
}

// takeRoom counts elements and bytes against the memory limit of the current value. It returns ErrFormat if the
// value would exceed the limit.
func (r *Reader) takeRoom(elements, bytes int) error {
	if !r.hasRoom(elements, bytes) {
		return fmt.Errorf("%w: a value of more than %d kB", ErrFormat, r.room>>10)
	}
	r.left -= elements*elementRoom + bytes*byteRoom
	return nil
}

func (r *Reader) hasRoom(elements, bytes int) bool {
	return elements <= r.left/elementRoom && bytes <= (r.left-elements*elementRoom)/byteRoom
}

func (r *Reader) readValue() (Value, error) {
	v, err := r.readNested(0)
	if err != nil {
		return Value{}, r.truncationError(err)
	}
	v.Raw = r.raw
	return v, nil
}

// ReadCommand blocks until a whole command has arrived. It returns the arguments and the bytes of the command,
// which share memory. An inline command (a line of words, as typed into a terminal) is split at blanks,
// without regard to quotes. An empty line has no arguments; a server ignores it.
func (r *Reader) ReadCommand() (args [][]byte, raw []byte, err error) {
	first, err := r.in.Peek(1)
	if err != nil {
		return nil, nil, err
	}
	r.raw = nil
	r.startValue('*')
	if first[0] != '*' {
		line, err := r.readLine()
		if err != nil {
			return nil, nil, r.truncationError(err)
		}
		return bytes.Fields(line), r.raw, nil
	}
	v, err := r.readNested(0)
	if err != nil {
		return nil, nil, r.truncationError(err)
	}
	for _, elem := range v.Elems {
		if elem.Kind != '$' || elem.Null {
			return nil, nil, fmt.Errorf("%w: a command has an argument of kind %q", ErrFormat, elem.Kind)
		}
		args = append(args, elem.Text)
	}
	return args, r.raw, nil
}

func (r *Reader) truncationError(err error) error {
	if errors.Is(err, io.EOF) && len(r.raw) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *Reader) readNested(depth int) (Value, error) {
	if depth > maxDepth {
		return Value{}, fmt.Errorf("%w: more than %d levels", ErrFormat, maxDepth)
	}
	line, err := r.readLine()
	if err != nil {
		return Value{}, err
	}
	if len(line) == 0 {
		return Value{}, fmt.Errorf("%w: empty line", ErrFormat)
	}
	kind, text := line[0], line[1:]
	if depth == 0 {
		r.startValue(kind)
	}
	if err := r.takeRoom(0, len(line)); err != nil {
		return Value{}, err
	}
	switch {
	case kind == '_':
		return Value{Kind: kind, Null: true}, nil
	case bytes.IndexByte([]byte("+-:#,("), kind) >= 0:
		return Value{Kind: kind, Text: text}, nil
	case bytes.IndexByte([]byte("$!="), kind) >= 0:
		return r.readBulk(kind, text)
	case isAggregate(kind):
		return r.readAggregate(kind, text, depth)
	case kind == '|': // attributes precede the value that they describe
		if _, err := r.readAggregate(kind, text, depth); err != nil {
			return Value{}, err
		}
		return r.readNested(depth + 1)
	}
	return Value{}, fmt.Errorf("%w: kind %q", ErrFormat, kind)
}

func isAggregate(kind byte) bool { return bytes.IndexByte([]byte("*%~>"), kind) >= 0 }

func (r *Reader) readBulk(kind byte, length []byte) (Value, error) {
	n, null, err := parseLength(length, maxBulk)
	if err != nil || null {
		return Value{Kind: kind, Null: null}, err
	}
	if !r.hasRoom(0, n) {
		return Value{Kind: '-', Text: fmt.Appendf(nil, tooLongText, n)}, r.skipString(n)
	}
	r.takeRoom(0, n)
	start := len(r.raw)
	for left := n + 2; left > 0; { // includes the line end
		part := min(left, chunkSize)
		r.raw = append(r.raw, make([]byte, part)...)
		if _, err := io.ReadFull(r.in, r.raw[len(r.raw)-part:]); err != nil {
			return Value{}, err
		}
		left -= part
	}
	text, end := r.raw[start:start+n], r.raw[start+n:]
	if string(end) != "\r\n" {
		return Value{}, errLineEnd
	}
	return Value{Kind: kind, Text: text}, nil
}

// skipString reads and drops a string of n bytes and its line end.
func (r *Reader) skipString(n int) error {
	if _, err := r.in.Discard(n); err != nil {
		return err
	}
	var end [2]byte
	if _, err := io.ReadFull(r.in, end[:]); err != nil {
		return err
	}
	if string(end[:]) != "\r\n" {
		return errLineEnd
	}
	return nil
}

var errLineEnd = fmt.Errorf("%w: string without its line end", ErrFormat)

func (r *Reader) readAggregate(kind byte, length []byte, depth int) (Value, error) {
	n, null, err := parseLength(length, maxCount)
	if err != nil || null {
		return Value{Kind: kind, Null: null}, err
	}
	if kind == '%' || kind == '|' {
		n *= 2
	}
	if err := r.takeRoom(n, 0); err != nil {
		return Value{}, err
	}
	v := Value{Kind: kind, Elems: make([]Value, 0, n)}
	for range n {
		elem, err := r.readNested(depth + 1)
		if err != nil {
			return Value{}, err
		}
		v.Elems = append(v.Elems, elem)
	}
	return v, nil
}

func parseLength(text []byte, most int) (n int, null bool, err error) {
	n, err = strconv.Atoi(string(text))
	switch {
	case err != nil || n < -1 || n > most:
		return 0, false, fmt.Errorf("%w: length %q", ErrFormat, text)
	case n == -1:
		return 0, true, nil
	}
	return n, false, nil
}

// readLine reads a line and returns it without the line end.
func (r *Reader) readLine() ([]byte, error) {
	start := len(r.raw)
	for {
		part, err := r.in.ReadSlice('\n')
		r.raw = append(r.raw, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(r.raw)-start > maxLine {
			return nil, fmt.Errorf("%w: line longer than %d bytes", ErrFormat, maxLine)
		}
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(r.raw[start:], []byte("\n")), []byte("\r")), nil
}
