//go:build ignore

// Elector has workers that lead by leaderelection of client-go: elector PORT KEY TTL WORKERS. See
// verify/peers/worker.go for the protocol. Its times have the usual ratio of 15, 10 and 2 s.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

var printing sync.Mutex

func printLine(words ...string) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(strings.Join(words, " "))
}

// worker takes part in the election from lock to unlock.
type worker struct {
	name    string
	leases  coordination.LeasesGetter
	key     string
	ttl     time.Duration
	elector *leaderelection.LeaderElector
	cancel  context.CancelFunc
	ended   chan struct{} // closed when Run has returned
}

func (w *worker) takeLease(limit time.Duration) string {
	ctx, cancel := context.WithCancel(context.Background())
	leads, ended := make(chan struct{}), make(chan struct{})
	var released sync.Once
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: w.key}, Client: w.leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s-%d-%d", w.name, os.Getpid(), time.Now().UnixNano())},
		},
		LeaseDuration: w.ttl, RenewDeadline: w.ttl * 10 / 15, RetryPeriod: w.ttl * 2 / 15, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(work context.Context) {
				close(leads)
				<-work.Done()
				if ctx.Err() == nil {
					released.Do(func() { printLine(w.name, "!", "lost") })
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		cancel()
		return "no: " + err.Error()
	}
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	select {
	case <-leads:
		w.elector, w.cancel, w.ended = e, cancel, ended
		return "held"
	case <-time.After(limit):
		cancel()
		<-ended
		return "no: it does not lead"
	}
}

func (w *worker) executeCommand(words []string) string {
	switch words[0] {
	case "lock":
		ms, _ := strconv.Atoi(words[1])
		return w.takeLease(time.Duration(ms) * time.Millisecond)
	case "try": // long enough for two requests
		return w.takeLease(w.ttl * 6 / 15)
	case "check":
		if w.elector.IsLeader() {
			return "held"
		}
		return "lost"
	default:
		if w.cancel == nil {
			return "error: it never led"
		}
		w.cancel()
		<-w.ended
		return "ok"
	}
}

func main() {
	klog.SetOutput(os.Stderr)
	klog.LogToStderr(false)
	port, key := os.Args[1], os.Args[2]
	seconds, _ := strconv.Atoi(os.Args[3])
	n, _ := strconv.Atoi(os.Args[4])
	var commands []chan []string
	for i := range n {
		leases, err := coordination.NewForConfig(&rest.Config{
			Host: "https://127.0.0.1:" + port, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
			ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}, // as custom resources need
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		w := &worker{name: strconv.Itoa(i), leases: leases, key: key, ttl: time.Duration(seconds) * time.Second}
		c := make(chan []string)
		commands = append(commands, c)
		go func() {
			for words := range c {
				printLine(w.name, "=", w.executeCommand(words))
			}
		}()
	}
	printLine("ready", moduleVersion())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		i, _ := strconv.Atoi(words[0])
		commands[i] <- words[1:]
	}
}

func moduleVersion() string {
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, m := range info.Deps {
			if m.Path == "k8s.io/client-go" {
				return strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return "?"
}
