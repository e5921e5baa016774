package tempo

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math"
	"math/big"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// measureFactor returns the factor by which this machine is slower than a quiet one: the largest of three
// ratios of times that tests depend on, from 1 to most, in quarters. It takes 50 ms on a quiet machine.
//
// Even a busy machine serves short bursts at once. So the handshakes keep all processors busy for longer than
// such a burst lasts.
func measureFactor() float64 {
	factor := 1.0
	for _, m := range []struct {
		normal time.Duration
		work   func() error
	}{
		{10 * time.Millisecond, startProcesses},
		{20 * time.Millisecond, shakeHands},
		{25 * time.Millisecond, syncFile},
	} {
		before := time.Now()
		if err := m.work(); err == nil { // otherwise the machine does not support it
			factor = max(factor, float64(time.Since(before))/float64(m.normal))
		}
	}
	return min(math.Round(4*factor)/4, maxFactor)
}

// startProcesses starts five processes, one after the other.
func startProcesses() (err error) {
	for i := 0; i < 5 && err == nil; i++ {
		err = exec.Command("true").Run()
	}
	return err
}

// shakeHands makes twenty TLS handshakes on each processor.
func shakeHands() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	text, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{text}, PrivateKey: key}}}
	client := &tls.Config{InsecureSkipVerify: true} // both ends are in this process
	errs := make([]error, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for n := 0; n < 20 && errs[i] == nil; n++ {
				errs[i] = shakeHand(server, client)
			}
		})
	}
	all.Wait()
	return errs[0]
}

func shakeHand(server, client *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() { done <- tls.Server(a, server).Handshake() }()
	if err := tls.Client(b, client).Handshake(); err != nil {
		return err
	}
	a.Close() // it may be writing a session ticket, which nobody reads
	<-done
	return nil
}

// syncFile writes five times to a file and syncs each write to disk.
func syncFile() error {
	f, err := os.CreateTemp("", "holdfast-pace")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	for i := 0; i < 5 && err == nil; i++ {
		if _, err = f.Write(make([]byte, 4096)); err == nil {
			err = f.Sync()
		}
	}
	return err
}
