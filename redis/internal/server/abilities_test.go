package server_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// connectTo returns a connection to a server that answers each command with the text that answer returns for it.
func connectTo(t *testing.T, answer func(command string) string) *resp.Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	go func() {
		for in := resp.NewReader(far); ; {
			args, _, err := in.ReadCommand()
			if err != nil {
				return
			}
			if _, err := far.Write([]byte(answer(string(bytes.Join(args, []byte(" ")))))); err != nil {
				return
			}
		}
	}()
	return resp.NewConn(near)
}

// A round-robin proxy leads the second connection to another server.
func TestCommandElsewhereProvesNoAtomicity(t *testing.T) {
	t.Parallel()
	for reaches, queue := range map[bool]string{true: "$5\r\nprobe\r\n", false: "$-1\r\n"} {
		l := connectTo(t, func(command string) string {
			switch command {
			case "GET lock":
				return "$5\r\nprobe\r\n"
			case "GET queue":
				return queue
			}
			if bytes.HasPrefix([]byte(command), []byte("EVALSHA")) {
				return "-ERR value is not an integer or out of range\r\n"
			}
			return "+OK\r\n"
		})
		other := connectTo(t, func(string) string { return "+OK\r\n" })
		known, err := server.CheckSteps(l, other, engine.Lock{Key: "lock", Queue: "queue"})
		if err != nil || known != reaches {
			t.Errorf("the second connection reaches the server %v: CheckSteps() = %v, %v", reaches, known, err)
		}
	}
}
