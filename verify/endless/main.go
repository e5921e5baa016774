// Command endless prints how much memory a client takes at most beside a server that sends without end, on each
// engine. The servers are fakes: each accepts the client as far as its protocol goes, and then sends one kind
// of message forever. The client is a process of its own, which asks for a lock for some seconds.
//
//	go run ./endless [-seconds 3] [-limit 8] [-garbage 56] [-only redis]
//
// Each client runs twice. The first run measures the memory of the process, garbage included: of what a fast
// server sends, the collector leaves more lying the less processor it gets. The second run collects without a
// break, and so measures what is in use. It fails if more MB than the limit are in use, or if the process takes
// more than the limit and the garbage, or if a client does not end.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/zookeeper"
)

var (
	seconds = flag.Int("seconds", 3, "how long each client asks for a lock")
	limit   = flag.Float64("limit", 8, "MB that a client may have in use")
	garbage = flag.Float64("garbage", 56, "MB of garbage beside them")
	only    = flag.String("only", "", "engines whose name has this")
	what    = flag.String("what", "", "messages whose description has this")
	client  = flag.String("client", "", "be the client of this URL, for the program itself")
	inUse   = flag.Bool("in-use", false, "measure what is in use, for the program itself")
)

// endlessServer sends without end.
type endlessServer struct {
	engine, what string
	url          string // %s is the address
	serve        func(conn net.Conn)
}

// writeForever writes a piece repeatedly until the client disconnects.
func writeForever(conn net.Conn, begin, piece []byte) {
	many := bytes.Repeat(piece, max(1, 64<<10/len(piece)))
	for _, err := conn.Write(begin); err == nil; {
		_, err = conn.Write(many)
	}
}

// endlessAnswer answers the first message of a client with begin, and each later one with an endless answer.
func endlessAnswer(greeting, begin, piece []byte, first func(net.Conn) error) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := conn.Write(greeting); err != nil || first(conn) != nil {
			return
		}
		writeForever(conn, begin, piece)
	}
}

// readMessage reads one message of a client.
func readMessage(conn net.Conn) error { _, err := conn.Read(make([]byte, 16<<10)); return err }

// writeNumbered writes pieces with the numbers from 0 on until the client disconnects.
func writeNumbered(conn net.Conn, piece func(i int) []byte) {
	var many []byte
	for i := 0; ; many = many[:0] {
		for len(many) < 64<<10 {
			many, i = append(many, piece(i)...), i+1
		}
		if _, err := conn.Write(many); err != nil {
			return
		}
	}
}

// pgMessage encodes a message of PostgreSQL.
func pgMessage(kind byte, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

// pgLogin accepts a client's login.
func pgLogin(conn net.Conn) error {
	if err := readMessage(conn); err != nil {
		return err
	}
	conn.Write(bytes.Join([][]byte{pgMessage('R', 0, 0, 0, 0), pgMessage('K', 0, 0, 0, 1, 0, 0, 0, 2), pgMessage('Z', 'I')}, nil))
	return readMessage(conn)
}

// myPacket encodes a packet of MySQL.
func myPacket(number byte, body ...byte) []byte {
	return append([]byte{byte(len(body)), byte(len(body) >> 8), byte(len(body) >> 16), number}, body...)
}

// pgSetting encodes the report of a setting.
func pgSetting(i int) []byte {
	return pgMessage('S', []byte("setting"+strconv.Itoa(i)+"\x00on\x00")...)
}

var myGreeting = myPacket(0, bytes.Join([][]byte{
	{10},
	[]byte("8.0.99\x00"),
	{1, 0, 0, 0},
	[]byte("12345678\x00"),
	{0xff, 0xf7, 45, 2, 0, 0xff, 0x01, 21},
	make([]byte, 10),
	[]byte("901234567890\x00"), []byte("mysql_native_password\x00"),
}, nil)...)

// myLogin accepts a client's login.
func myLogin(conn net.Conn) error {
	if err := readMessage(conn); err != nil {
		return err
	}
	conn.Write(myPacket(2, 0, 0, 0, 2, 0, 0, 0))
	return readMessage(conn)
}

// zkPacket encodes a packet of ZooKeeper.
func zkPacket(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// zkWelcome gives a client a session with the timeout that it asks for.
func zkWelcome(conn net.Conn) error {
	hello := make([]byte, 16<<10)
	if n, err := conn.Read(hello); err != nil || n < 20 { // less: a question of four letters
		return io.ErrUnexpectedEOF
	}
	welcome := append(binary.BigEndian.AppendUint32(nil, 0), hello[16:20]...)
	welcome = binary.BigEndian.AppendUint64(welcome, 7)
	welcome = binary.BigEndian.AppendUint32(welcome, 16)
	_, err := conn.Write(zkPacket(append(welcome, make([]byte, 17)...)))
	return err
}

// zkLogin gives a client a session and reads its first request.
func zkLogin(conn net.Conn) error { return errors.Join(zkWelcome(conn), readMessage(conn)) }

var endlessServers = []endlessServer{
	{"Redis", "one text", "redis://%s", endlessAnswer(nil, []byte("$536870912\r\n"), make([]byte, 4096), readMessage)},
	{"Redis", "one list of numbers", "redis://%s", endlessAnswer(nil, []byte("*1000000000\r\n"), []byte(":1\r\n"), readMessage)},
	{"Redis", "lists in lists", "redis://%s", endlessAnswer(nil, nil, []byte("*1\r\n"), readMessage)},
	{"Redis", "pushes", "redis://%s", endlessAnswer(nil, nil, []byte(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"), readMessage)},
	{"Redis", "answers", "redis://%s", endlessAnswer(nil, nil, []byte("+OK\r\n"), readMessage)},
	{
		"PostgreSQL", "one row", "postgres://u:p@%s/db?sslmode=disable",
		endlessAnswer(nil, append(pgMessage('1'), 'D', 0x3f, 0xff, 0xff, 0xff), make([]byte, 4096), pgLogin),
	},
	{"PostgreSQL", "rows", "postgres://u:p@%s/db?sslmode=disable", endlessAnswer(nil, bytes.Join([][]byte{
		pgMessage('1'), pgMessage('2'), pgMessage('T', append([]byte{0, 1, 'x', 0}, make([]byte, 18)...)...),
	}, nil), pgMessage('D', 0, 1, 0, 0, 0, 1, 't'), pgLogin)},
	{"PostgreSQL", "notifications", "postgres://u:p@%s/db?sslmode=disable", endlessAnswer(nil, nil, pgMessage('A', 0, 0, 0, 1, 'a', 0, 'b', 0), pgLogin)},
	{"PostgreSQL", "long notifications", "postgres://u:p@%s/db?sslmode=disable", endlessAnswer(nil, nil,
		pgMessage('A', append(make([]byte, 4), "a\x00"+strings.Repeat("b", 8000)+"\x00"...)...), pgLogin)},
	{"PostgreSQL", "settings", "postgres://u:p@%s/db?sslmode=disable", func(conn net.Conn) {
		if pgLogin(conn) == nil {
			writeNumbered(conn, pgSetting)
		}
	}},
	{"PostgreSQL", "settings at the login", "postgres://u:p@%s/db?sslmode=disable", func(conn net.Conn) {
		if readMessage(conn) == nil {
			conn.Write(pgMessage('R', 0, 0, 0, 0))
			writeNumbered(conn, pgSetting)
		}
	}},
	{"MySQL", "one packet", "mysql://u:p@%s/db", endlessAnswer(myGreeting, nil, append([]byte{0xff, 0xff, 0xff, 1}, make([]byte, 1<<24-1)...), myLogin)},
	{"MySQL", "rows", "mysql://u:p@%s/db", func(conn net.Conn) {
		if conn.Write(myGreeting); myLogin(conn) != nil {
			return
		}
		column := append([]byte("\x03def\x00\x00\x00\x01x\x00\x0c\x3f\x00"), 0, 0, 0, 0, 8, 0, 0, 0, 0, 0)
		var rows []byte
		for n := range 256 {
			rows = append(rows, myPacket(byte(n+4), 1, '1')...)
		}
		writeForever(conn, bytes.Join([][]byte{myPacket(1, 1), myPacket(2, column...), myPacket(3, 0xfe, 0, 0, 2, 0)}, nil), rows)
	}},
	{"ZooKeeper", "one packet", "zk://%s", endlessAnswer(nil, []byte{0x7f, 0xff, 0xff, 0xff}, make([]byte, 4096), zkLogin)},
	{"ZooKeeper", "events", "zk://%s", endlessAnswer(nil, nil, zkPacket(append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 28)...)), zkLogin)},
	{"ZooKeeper", "pongs", "zk://%s", endlessAnswer(nil, nil, zkPacket(append([]byte{0xff, 0xff, 0xff, 0xfe}, make([]byte, 12)...)), zkLogin)},
	{"ZooKeeper", "names of waiters", "zk://%s", zkNames},
	{"etcd", "one answer", "etcd://%s", nil},
	{"etcd", "answers", "etcd://%s", nil},
	{"etcd", "answers of empty keys", "etcd://%s", nil},
	{"etcd", "headers", "etcd://%s", nil},
	{"etcd", "events", "etcd://%s", nil},
}

var zkConns atomic.Int64

// zkNames answers each request with as many names as fit into a packet of 5 MB, or of 1 MB: the fake does not
// know the client's bound.
func zkNames(conn net.Conn) {
	if zkWelcome(conn) != nil {
		return
	}
	name := append(binary.BigEndian.AppendUint32(nil, 13), "a.1-000000000"...)
	count := []int{(5<<20 - 1000) / 17, (1<<20 - 1000) / 17}[zkConns.Add(1)%2]
	names := binary.BigEndian.AppendUint32(nil, uint32(count))
	for i := range count {
		names = append(names, name[:8]...)
		names = strconv.AppendInt(names, int64(100_000_000+i), 10)
	}
	node := append(binary.BigEndian.AppendUint32(nil, 13), "/a.1-00000000"...)
	for {
		var head [12]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head[:]))-8); err != nil {
			return
		}
		answer := append(bytes.Clone(head[4:8]), make([]byte, 12)...) // the number of the request, a zxid, no error
		switch binary.BigEndian.Uint32(head[8:]) {
		case 11, 100: // ping, login
		case 12: // children
			answer = append(answer, names...)
		case 1, 15, 19: // creations
			answer = append(answer, node...)
		}
		if _, err := conn.Write(zkPacket(append(answer, make([]byte, 68)...))); err != nil {
			return
		}
	}
}

// raw makes gRPC send messages as bytes.
type raw struct{ encoding.CodecV2 }

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var etcdHeader = &pb.ResponseHeader{ClusterId: 1, MemberId: 1, Revision: 7, RaftTerm: 2}

// etcdMessage encodes a message of etcd.
func etcdMessage(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // cannot fail
	}
	return b
}

// etcdServer answers each call with endless messages.
func etcdServer(l net.Listener, what string) {
	calls := atomic.Int64{}
	header := etcdMessage(&pb.TxnResponse{Header: etcdHeader})
	answer := func(grpc.ServerStream, string) []byte {
		return etcdMessage(&pb.WatchResponse{Header: etcdHeader, Created: true})
	}
	switch what {
	case "one answer":
		long := make([]byte, 1<<30)
		answer = func(grpc.ServerStream, string) []byte { return long }
	case "answers of empty keys": // the client's bound is not known here
		answer = func(s grpc.ServerStream, method string) []byte {
			sizes := []int{15 << 20, 7 << 20, 1<<20 - 100, 100 << 10, 60 << 10}
			size := sizes[int(calls.Add(1))%len(sizes)]
			switch method {
			case "Range": // keys
				return append(bytes.Clone(header), bytes.Repeat([]byte{0x12, 0}, size/2)...)
			case "Txn": // answers to the parts of a transaction
				return append(bytes.Clone(header), bytes.Repeat([]byte{0x1a, 0}, size/2)...)
			}
			return etcdGrant(s, method)
		}
	case "headers":
		long := metadata.Pairs("x", strings.Repeat("y", 15<<20))
		answer = func(s grpc.ServerStream, _ string) []byte {
			s.SetHeader(long)
			s.SetTrailer(long)
			return header
		}
	case "events": // to a client that has got its lock
		answer = etcdGrant
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxSendMsgSize(1<<31-1), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var request []byte
		err := s.RecvMsg(&request)
		method, _ := grpc.MethodFromServerStream(s)
		message := answer(s, path.Base(method))
		if err == nil {
			err = s.SendMsg(message)
		}
		if what == "events" {
			if path.Base(method) != "Watch" {
				return err
			}
			message = etcdMessage(&pb.WatchResponse{
				Header: etcdHeader, Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: []byte("k"), Value: make([]byte, 1000), ModRevision: 8}}},
			})
		}
		for err == nil {
			err = s.SendMsg(message)
		}
		return err
	}))
	s.Serve(l)
}

// etcdGrant answers so that the client gets a lease and a lock, and a watch.
func etcdGrant(_ grpc.ServerStream, method string) []byte {
	switch method {
	case "LeaseGrant":
		return etcdMessage(&pb.LeaseGrantResponse{Header: etcdHeader, ID: 1000, TTL: 10})
	case "Txn":
		kv := &mvccpb.KeyValue{Key: []byte("holdfast/k,a.1"), Value: []byte("{}"), CreateRevision: 7, ModRevision: 7, Version: 1, Lease: 1000}
		return etcdMessage(&pb.TxnResponse{Header: etcdHeader, Succeeded: true, Responses: []*pb.ResponseOp{
			{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: etcdHeader}}},
			{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Header: etcdHeader, Count: 1, Kvs: []*mvccpb.KeyValue{kv}}}},
		}})
	case "Watch":
		return etcdMessage(&pb.WatchResponse{Header: etcdHeader, Created: true})
	}
	return etcdMessage(&pb.RangeResponse{Header: etcdHeader})
}

func main() {
	flag.Parse()
	if *client != "" {
		if err := runClient(*client); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return
	}
	failed := false
	fmt.Println("| engine | the server sends without end | MB in use | MB of the process |\n|---|---|--:|--:|")
	for _, s := range endlessServers {
		if !strings.Contains(strings.ToLower(s.engine), strings.ToLower(*only)) || !strings.Contains(s.what, *what) {
			continue
		}
		used, err := measureMemory(s, true)
		taken, worse := measureMemory(s, false)
		if err := errors.Join(err, worse); err != nil || used > *limit || taken > *limit+*garbage {
			failed = true
			fmt.Fprintf(os.Stderr, "%s, %s: too much, or %v\n", s.engine, s.what, err)
		}
		fmt.Printf("| %s | %s | %.1f | %.0f |\n", s.engine, s.what, used, taken)
	}
	if failed {
		os.Exit(1)
	}
}

// measureMemory runs a client of s and returns the growth in MB of its process, or with heapOnly of its heap in use.
func measureMemory(s endlessServer, heapOnly bool) (peak float64, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	if s.serve == nil {
		go etcdServer(l, s.what)
	} else {
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					s.serve(conn)
				}()
			}
		}()
	}
	own, err := os.Executable()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second+2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, own, "-seconds", strconv.Itoa(*seconds), "-client", fmt.Sprintf(s.url, l.Addr()), "-in-use="+strconv.FormatBool(heapOnly))
	if cmd.Stderr = os.Stderr; heapOnly {
		cmd.Env = append(os.Environ(), "GOGC=5", "GODEBUG=gcstoptheworld=1") // a concurrent collection counts new garbage as in use
	}
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("the client did not end by itself: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}

// runClient requests a lock, inspects it, and prints the growth of this process in MB.
func runClient(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second)
	defer cancel()
	measure := residentMemory
	if *inUse {
		measure = watchHeap()
	}
	before, err := measure()
	if err != nil {
		return err
	}
	d, err := openDriver(ctx, url)
	if err != nil {
		return err
	}
	if a, ok := d.(driver.Alerter); ok {
		a.Alert(func(string, string) {})
	}
	if _, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second}); err == nil { // else the server has granted nothing
		<-ctx.Done()
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if i, ok := d.(driver.Inspector); ok {
		for range 10 {
			i.Inspect(ctx, "k")
		}
	}
	d.Close()
	after, err := measure()
	fmt.Println(after - before)
	return err
}

// watchHeap returns a function that returns the largest heap that collections have found in use, in MB.
func watchHeap() (largest func() (float64, error)) {
	var most atomic.Uint64
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	look := func() {
		metrics.Read(sample)
		most.Store(max(most.Load(), sample[0].Value.Uint64()))
	}
	runtime.GC()
	look()
	go func() {
		for range time.Tick(time.Millisecond) {
			look()
		}
	}()
	return func() (float64, error) { return float64(most.Load()) / (1 << 20), nil }
}

func openDriver(ctx context.Context, url string) (driver.Driver, error) {
	scheme, _, _ := strings.Cut(url, ":")
	switch scheme {
	case "redis":
		return redis.Open(ctx, url, &redis.Options{NoCheck: true})
	case "postgres":
		return postgres.Open(ctx, url, &postgres.Options{NoCheck: true})
	case "mysql":
		return mysql.Open(ctx, url, &mysql.Options{NoCheck: true})
	case "zk":
		return zookeeper.Open(ctx, url, &zookeeper.Options{NoCheck: true})
	case "etcd":
		return etcd.Open(ctx, url, &etcd.Options{NoCheck: true})
	}
	return nil, errors.New("no such engine")
}

// residentMemory returns the peak memory of this process in MB.
func residentMemory() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kb) / 1024, err
}
