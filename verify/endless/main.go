// Command endless prints how much memory a client takes at most beside a server that sends without end, on each engine. The
// servers are made up: each lets the client in as far as its protocol goes, and then sends one kind of message for ever. The
// client is a process of its own, which asks for a lock for some seconds.
//
//	go run ./endless [-seconds 5] [-limit 64] [-only redis]
//
// It fails if a client took more than the limit in MB, or did not end.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/zookeeper"
)

var (
	seconds = flag.Int("seconds", 5, "how long each client asks for a lock")
	limit   = flag.Int("limit", 64, "MB that a client may take")
	only    = flag.String("only", "", "engines whose name has this")
	client  = flag.String("client", "", "be the client of this URL, for the program itself")
)

// flood is a server that sends without end.
type flood struct {
	engine, what string
	url          string // %s is the address
	serve        func(conn net.Conn)
}

// pourBytes writes a piece repeatedly until the client has gone.
func pourBytes(conn net.Conn, begin, piece []byte) {
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
		pourBytes(conn, begin, piece)
	}
}

// readMessage reads one message of a client.
func readMessage(conn net.Conn) error { _, err := conn.Read(make([]byte, 16<<10)); return err }

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

// zkLogin gives a client a session.
func zkLogin(conn net.Conn) error {
	if err := readMessage(conn); err != nil {
		return err
	}
	welcome := binary.BigEndian.AppendUint32(nil, 0)
	welcome = binary.BigEndian.AppendUint32(welcome, 10_000)
	welcome = binary.BigEndian.AppendUint64(welcome, 7)
	welcome = binary.BigEndian.AppendUint32(welcome, 16)
	conn.Write(zkPacket(append(welcome, make([]byte, 17)...)))
	return readMessage(conn)
}

var floods = []flood{
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
		pourBytes(conn, bytes.Join([][]byte{myPacket(1, 1), myPacket(2, column...), myPacket(3, 0xfe, 0, 0, 2, 0)}, nil), rows)
	}},
	{"ZooKeeper", "one packet", "zk://%s", endlessAnswer(nil, []byte{0x7f, 0xff, 0xff, 0xff}, make([]byte, 4096), zkLogin)},
	{"ZooKeeper", "events", "zk://%s", endlessAnswer(nil, nil, zkPacket(append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 28)...)), zkLogin)},
	{"ZooKeeper", "pongs", "zk://%s", endlessAnswer(nil, nil, zkPacket(append([]byte{0xff, 0xff, 0xff, 0xfe}, make([]byte, 12)...)), zkLogin)},
	{"etcd", "one answer", "etcd://%s", nil},
	{"etcd", "answers", "etcd://%s", nil},
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

// etcdServer answers each call with endless messages: one of 1 GB, or events of one key.
func etcdServer(l net.Listener, what string) {
	message, err := proto.Marshal(&pb.WatchResponse{Header: &pb.ResponseHeader{ClusterId: 1, MemberId: 1, Revision: 7, RaftTerm: 2}, Created: true})
	if err != nil {
		panic(err) // cannot fail
	}
	if what == "one answer" {
		message = make([]byte, 1<<30)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxSendMsgSize(1<<31-1), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var request []byte
		err := s.RecvMsg(&request)
		for err == nil {
			err = s.SendMsg(message)
		}
		return err
	}))
	s.Serve(l)
}

func main() {
	flag.Parse()
	if *client != "" {
		if err := beClient(*client); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return
	}
	failed := false
	fmt.Println("| engine | the server sends without end | MB more than at the start |\n|---|---|---|")
	for _, f := range floods {
		if !strings.Contains(strings.ToLower(f.engine), strings.ToLower(*only)) {
			continue
		}
		peak, err := measureFlood(f)
		if err != nil || peak > *limit {
			failed = true
			fmt.Fprintf(os.Stderr, "%s, %s: %v\n", f.engine, f.what, err)
		}
		fmt.Printf("| %s | %s | %d |\n", f.engine, f.what, peak)
	}
	if failed {
		os.Exit(1)
	}
}

// measureFlood runs a client with a flood and returns its growth in MB.
func measureFlood(f flood) (peak int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	if f.serve == nil {
		go etcdServer(l, f.what)
	} else {
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					f.serve(conn)
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
	cmd := exec.CommandContext(ctx, own, "-seconds", strconv.Itoa(*seconds), "-client", fmt.Sprintf(f.url, l.Addr()))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("the client did not end by itself: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// beClient requests a lock, inspects it, and prints the growth of this process in MB.
func beClient(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second)
	defer cancel()
	before, err := residentMemory()
	if err != nil {
		return err
	}
	d, err := openDriver(ctx, url)
	if err != nil {
		return err
	}
	d.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second}) // fails: the server grants nothing
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if i, ok := d.(driver.Inspector); ok {
		i.Inspect(ctx, "k")
	}
	d.Close()
	after, err := residentMemory()
	fmt.Println(after - before)
	return err
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
func residentMemory() (int, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	return kb >> 10, err
}
