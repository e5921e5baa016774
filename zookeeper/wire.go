package zookeeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
)

// This file has the wire format: jute, with big-endian numbers and length-prefixed strings, and the few
// requests that locks need.

// Kinds of requests.
const (
	opDelete      int32 = 2
	opExists      int32 = 3
	opGetData     int32 = 4
	opSetData     int32 = 5
	opSync        int32 = 9
	opPing        int32 = 11
	opGetChildren int32 = 12 // answers with the stat of the parent
	opCheck       int32 = 13
	opMulti       int32 = 14
	opCreate      int32 = 15 // answers with the stat of the node
	opContainer   int32 = 19
	opAuth        int32 = 100
	opClose       int32 = -11
	opPersistent  int32 = 1
)

// Reserved request numbers.
const (
	xidWatch int32 = -1
	xidPing  int32 = -2
	xidAuth  int32 = -4
)

const (
	flagEphemeralSequential int32 = 3
	flagContainer           int32 = 4

	allRights int32 = 31

	// maxAnswers bounds the answers to requests that were sent together. One answer may have the names of
	// 22,000 waiters, which as entries take up to four times as much memory. maxListing bounds the answer with
	// the names of all locks, and maxWelcome any other packet.
	maxAnswers = 1<<20 + 4<<10
	maxListing = 64 << 20
	maxWelcome = 64 << 10
)

// code is an error code of the servers.
type code int32

// Errors of the servers.
const (
	codeUnimplemented code = -6
	codeNoNode        code = -101
	codeNoAuth        code = -102
	codeNoChildren    code = -108 // ephemeral nodes have no children
	codeNodeExists    code = -110
	codeExpired       code = -112
	codeInvalidACL    code = -114
	codeAuthFailed    code = -115
	codeMoved         code = -118
	codeQuota         code = -125
)

var codeTexts = map[code]string{
	codeUnimplemented: "these servers do not know this request",
	codeNoNode:        "there is no such node",
	codeNoAuth:        "no permission for this node",
	codeNoChildren:    "the parent is an ephemeral node, which has no children",
	codeNodeExists:    "the node exists",
	codeExpired:       "the session is over",
	codeInvalidACL:    "the servers reject these permissions for a node",
	codeAuthFailed:    "the servers reject the user",
	codeMoved:         "the session has moved to another member",
	codeQuota:         "the quota is used up",
}

// Error returns a description of the code.
func (c code) Error() string {
	if text := codeTexts[c]; text != "" {
		return text
	}
	return fmt.Sprintf("error %d of the servers", int32(c))
}

// stat is the servers' record of a node.
type stat struct {
	czxid    int64 // zxid of its creation
	children int32
	pzxid    int64 // zxid of the last change to its children
}

// writer encodes a packet.
type writer struct{ b []byte }

func (w *writer) int32(v int32) { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) int64(v int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }

func (w *writer) bool(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) text(v string) {
	w.int32(int32(len(v)))
	w.b = append(w.b, v...)
}

// reader decodes a packet. After the end it returns zeros and sets err.
type reader struct {
	b   []byte
	err error
}

var errShort = errors.New("an answer is cut short")

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.b, r.err = nil, errShort
		return make([]byte, min(max(n, 0), 8))
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) int32() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }
func (r *reader) int64() int64 { return int64(binary.BigEndian.Uint64(r.take(8))) }
func (r *reader) bool() bool   { return r.take(1)[0] != 0 }
func (r *reader) text() string { return string(r.bytes()) }

// bytes returns nil for a length of -1.
func (r *reader) bytes() []byte {
	n := r.int32()
	if n < 0 {
		return nil
	}
	if int(n) > len(r.b) {
		r.b, r.err = nil, errShort
		return nil
	}
	return r.take(int(n))
}

// count returns the length of a list, bounded by the number of elements of size bytes that fit into the
// packet.
func (r reader) count(size int) int { return min(max(int(r.int32()), 0), len(r.b)/size) }

// names iterates over the names of children. Check err after the last name: it reports a truncated list.
func (r *reader) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for n := r.int32(); n > 0; n-- {
			name := r.text()
			if r.err != nil || !yield(name) {
				return
			}
		}
	}
}

func (r *reader) stat() (s stat) {
	s.czxid = r.int64()
	r.take(8 + 8 + 8 + 4 + 4 + 4 + 8 + 4) // skip mzxid to dataLength
	s.children = r.int32()
	s.pzxid = r.int64()
	return s
}

// readPacket reads a length-prefixed packet of at most room() bytes; it calls room after the length has
// arrived. It allocates memory only for bytes that have arrived.
func readPacket(from io.Reader, room func() int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if room := room(); n > int64(room) {
		return nil, fmt.Errorf("an answer of %d bytes, of %d at most: this is not a ZooKeeper server, or one that speaks TLS", n, room)
	}
	var packet []byte
	for done := 0; done < int(n); {
		more := min(int(n)-done, max(done, 4096))
		packet = append(packet, make([]byte, more)...)
		if _, err := io.ReadFull(from, packet[done:]); err != nil {
			return nil, err
		}
		done += more
	}
	return packet, nil
}

// packet returns the bytes that write produces, with their length before them.
func packet(write func(*writer)) []byte {
	w := writer{b: make([]byte, 4, 128)}
	write(&w)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

// greeting opens or resumes a session.
type greeting struct {
	zxid     int64 // last zxid seen
	timeout  int32 // ms
	id       int64
	password []byte
}

func (g greeting) packet() []byte {
	return packet(func(w *writer) {
		w.int32(0) // protocol version
		w.int64(g.zxid)
		w.int32(g.timeout)
		w.int64(g.id)
		w.text(string(g.password))
		w.bool(false) // do not accept a read-only member
	})
}

// readWelcome decodes the answer to a greeting. An answer without an id means that the session is over.
func readWelcome(b []byte) (greeting, error) {
	r := reader{b: b}
	r.int32()
	g := greeting{timeout: r.int32(), id: r.int64()}
	g.password = r.bytes()
	return g, r.err
}

// request is one request and its answer.
type request struct {
	op      int32
	write   func(*writer)
	listing bool // the answer has the names of all locks

	// The link sets the fields below before it closes done.
	err   error  // nil, or the error code of the servers
	reply reader // after the header
}

func getChildren(path string) *request {
	return &request{op: opGetChildren, write: encodePathAndWatch(path, false)}
}

// listRequest is getChildren for a folder with many locks.
func listRequest(path string) *request {
	r := getChildren(path)
	r.listing = true
	return r
}

func getData(path string, watch bool) *request {
	return &request{op: opGetData, write: encodePathAndWatch(path, watch)}
}

func existsRequest(path string) *request {
	return &request{op: opExists, write: encodePathAndWatch(path, false)}
}

func encodePathAndWatch(path string, watch bool) func(*writer) {
	return func(w *writer) {
		w.text(path)
		w.bool(watch)
	}
}

func syncWith(path string) *request {
	return &request{op: opSync, write: func(w *writer) { w.text(path) }}
}

func removeRequest(path string) *request {
	return &request{op: opDelete, write: func(w *writer) {
		w.text(path)
		w.int32(-1) // any version
	}}
}

// goodbyeRequest ends the session, and deletes its nodes.
func goodbyeRequest() *request { return &request{op: opClose, write: func(*writer) {}} }

// forceRequest deletes a node and leaves a message in its folder.
func forceRequest(node, folder, message string) *request {
	return &request{op: opMulti, write: func(w *writer) {
		w.int32(opDelete)
		w.bool(false)
		w.int32(-1)
		w.text(node)
		w.int32(-1)
		w.int32(opSetData)
		w.bool(false)
		w.int32(-1)
		w.text(folder)
		w.text(message)
		w.int32(-1)
		w.int32(-1)
		w.bool(true)
		w.int32(-1)
	}}
}

// createRequest creates the node of a claim, containerRequest its folder, persistentRequest a parent of
// folders.
func createRequest(path, value string, acl acl) *request {
	return &request{op: opCreate, write: creationBody(path, value, acl, flagEphemeralSequential)}
}

func containerRequest(path string, acl acl) *request {
	return &request{op: opContainer, write: creationBody(path, "", acl, flagContainer)}
}

func persistentRequest(path string, acl acl) *request {
	return &request{op: opPersistent, write: creationBody(path, "", acl, 0)}
}

// acl grants all permissions for a node to one identity.
type acl struct{ scheme, id string }

var (
	everybody = acl{"world", "anyone"}
	creator   = acl{"auth", ""}
)

func creationBody(path, value string, acl acl, flags int32) func(*writer) {
	return func(w *writer) {
		w.text(path)
		w.text(value)
		w.int32(1)
		w.int32(allRights)
		w.text(acl.scheme)
		w.text(acl.id)
		w.int32(flags)
	}
}

// confirmRequest returns a transaction that changes nothing and succeeds only if all nodes exist.
func confirmRequest(paths []string) *request {
	return &request{op: opMulti, write: func(w *writer) {
		for _, path := range paths {
			w.int32(opCheck)
			w.bool(false)
			w.int32(-1)
			w.text(path)
			w.int32(-1) // any version
		}
		w.int32(-1)
		w.bool(true)
		w.int32(-1)
	}}
}

// createAttemptRequest returns a transaction that creates a node and then fails, so that the server checks the
// permission but keeps no node.
func createAttemptRequest(path string, acl acl) *request {
	return &request{op: opMulti, write: func(w *writer) {
		w.int32(opPersistent)
		w.bool(false)
		w.int32(-1)
		creationBody(path, "", acl, 0)(w)
		w.int32(opCheck)
		w.bool(false)
		w.int32(-1)
		w.text(path + "/nothing")
		w.int32(-1)
		w.int32(-1)
		w.bool(true)
		w.int32(-1)
	}}
}

// errorCodes returns the error codes of a transaction's operations. If one operation fails, it has its code; the
// others have none or their own.
func (r *request) errorCodes(n int) ([]code, error) {
	all := make([]code, 0, n)
	for len(all) <= n && r.reply.err == nil {
		kind, done := r.reply.int32(), r.reply.bool()
		r.reply.int32()
		if done {
			break
		}
		var c code
		switch kind {
		case -1:
			c = code(r.reply.int32())
		case opSetData:
			r.reply.stat()
		}
		all = append(all, c)
	}
	if r.reply.err == nil && len(all) != n {
		r.reply.err = errShort
	}
	return all, r.reply.err
}

// isTransaction reports whether the request is a transaction, which a majority logs.
func (r *request) isTransaction() bool {
	return r.op == opCreate || r.op == opDelete || r.op == opMulti || r.op == opContainer || r.op == opPersistent
}
