package cli

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listenAsSystemd opens a socket in place of systemd's. hear returns the next message of the service.
func listenAsSystemd(t *testing.T) (hear func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	return func() string {
		t.Helper()
		text := make([]byte, 1000)
		l.SetReadDeadline(time.Now().Add(90 * time.Second))
		n, err := l.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
}

// The service sends the messages that systemd expects.
func TestServiceSendsWatchdogMessages(t *testing.T) {
	hear := listenAsSystemd(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	m := newManager()
	for range 3 {
		if got := hear(); got != "WATCHDOG=1" {
			t.Errorf("the watchdog received %q", got)
		}
	}
	m.notifyReady("running %s", "a\nREADY=0")
	for got := hear(); got != `READY=1`+"\n"+`STATUS=running a\nREADY=0`; got = hear() {
		if got != "WATCHDOG=1" {
			t.Fatalf("it hears %q", got)
		}
	}
	m.close()
	for hear() != "STOPPING=1" {
	}
	t.Setenv("WATCHDOG_PID", "1")
	if every := watchdogInterval(); every != 0 {
		t.Errorf("the watchdog of another process: %v", every)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	m = newManager()
	m.notifyWaiting("nobody hears it")
	m.notifyReady("nobody hears it")
	m.notifyReloaded()
	m.close()
}

// A service that waits for its lock extends its start time. A ready service does not: that would override
// RuntimeMaxSec.
func TestWaitingServiceExtendsStartTimeout(t *testing.T) {
	hear := listenAsSystemd(t)
	m := newManager()
	m.notifyWaiting("waiting for %s", "a")
	for _, want := range []string{"STATUS=waiting for a", "EXTEND_TIMEOUT_USEC=30000000"} {
		if got := hear(); got != want {
			t.Errorf("received %q, want %q", got, want)
		}
	}
	m.waited()
	m.waited = m.sendRepeatedly("EXTEND_TIMEOUT_USEC=1", time.Millisecond)
	for range 3 {
		if got := hear(); got != "EXTEND_TIMEOUT_USEC=1" {
			t.Errorf("it hears %q", got)
		}
	}
	m.notifyReady("running")
	for got := hear(); got != "READY=1\nSTATUS=running"; got = hear() {
		if got != "EXTEND_TIMEOUT_USEC=1" {
			t.Fatalf("it hears %q", got)
		}
	}
	m.close()
	if got := hear(); got != "STOPPING=1" {
		t.Errorf("a suspended service sends %q", got)
	}
}

// systemd.service(5) requires for Type=notify-reload a CLOCK_MONOTONIC time not before the signal, and then
// READY=1.
func TestReloadIsAnswered(t *testing.T) {
	hear := listenAsSystemd(t)
	m := newManager()
	before := monotonicTime()
	m.notifyReloaded()
	var usec int64
	if got := hear(); !strings.HasPrefix(got, "RELOADING=1\n") {
		t.Errorf("it hears %q", got)
	} else if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &usec); err != nil {
		t.Errorf("it hears %q: %v", got, err)
	}
	if usec < before.Microseconds() || usec > monotonicTime().Microseconds() || usec == 0 {
		t.Errorf("the reload began at %d, and the test at %v", usec, before)
	}
	if got := hear(); got != "READY=1" {
		t.Errorf("it hears %q", got)
	}
	m.close()
}
