package redisproc

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissingProgramErrorNamesFix(t *testing.T) {
	t.Setenv(programVariable, "") // not parallel, because the environment belongs to the process
	_, err := findProgram("", []string{t.TempDir()})
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install redis-server") {
		t.Errorf("error %v, want ErrNotInstalled with the command that installs it", err)
	}
}

func TestProgramNeedNotBeInPath(t *testing.T) {
	t.Setenv(programVariable, "") // not parallel, because the environment belongs to the process
	dir := t.TempDir()
	want := filepath.Join(dir, "redis-server")
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := findProgram("", []string{t.TempDir(), dir}); got != want {
		t.Errorf("found %q, %v, want %q", got, err, want)
	}
}

func TestPortTakenByAnotherServer(t *testing.T) {
	t.Parallel()
	first, err := Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { first.Stop() })
	// The first server answers PING on that port, and must not be mistaken for the second one.
	if second, err := Start(t.Context(), &Options{Port: first.port}); !errors.Is(err, errPortTaken) {
		t.Errorf("second server on one port: %v, %v; want errPortTaken", second, err)
	}
}

func TestPortTakenBySilentProgram(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	port := listener.Addr().(*net.TCPAddr).Port
	if server, err := Start(t.Context(), &Options{Port: port}); !errors.Is(err, errPortTaken) {
		t.Errorf("server on a port in use: %v, %v; want errPortTaken", server, err)
	}
}

func TestPortOfDownServerStaysReserved(t *testing.T) {
	t.Parallel()
	var err error
	for range 5 { // another test may take a port as soon as it is free
		var server *Server
		if server, err = Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Stop() })
		server.Kill()
		if holder, err := net.ListenPacket("udp", server.Addr()); err == nil {
			holder.Close()
			t.Error("the port is not reserved while the server is down")
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		var holder net.PacketConn
		if holder, err = net.ListenPacket("udp", server.Addr()); err == nil {
			holder.Close()
			return
		}
	}
	t.Errorf("the port is still reserved after Stop: %v", err)
}
