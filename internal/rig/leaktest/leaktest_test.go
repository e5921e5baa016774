package leaktest

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// The tests here are not parallel, because goroutines and descriptors belong to the process.
func TestLeakedGoroutineIsReported(t *testing.T) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); <-end }()
	var out strings.Builder
	if reportLeaks(&out, openDescriptors(), 0) == 0 || !strings.Contains(out.String(), "TestLeakedGoroutineIsReported") {
		t.Errorf("leaked goroutine: verdict %q", &out)
	}
	close(end)
	<-ended
	out.Reset()
	if reportLeaks(&out, openDescriptors(), settleTimeout) != 0 {
		t.Errorf("no leak: verdict %q", &out)
	}
}

func TestLeakedDescriptorIsReported(t *testing.T) {
	before := openDescriptors()
	if len(before) == 0 {
		if _, err := os.Stat("/proc/self/fd"); err != nil {
			t.Skipf("only Linux tells which descriptors are open: %v", err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if reportLeaks(&out, before, 0) == 0 || !strings.Contains(out.String(), "socket:") {
		t.Errorf("leaked listener: verdict %q", &out)
	}
	l.Close()
	out.Reset()
	if reportLeaks(&out, before, time.Second) != 0 {
		t.Errorf("no leak: verdict %q", &out)
	}
}
