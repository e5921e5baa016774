package faultproxy_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

func TestMeshIsolatesOneServerOnly(t *testing.T) {
	t.Parallel()
	const servers = 3
	heard := make([]chan bool, servers) // receives when a request arrives
	var addrs [][]string
	for i := range servers {
		heard[i] = make(chan bool, 10)
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard[i] <- true }))
		t.Cleanup(s.Close)
		addrs = append(addrs, []string{strings.TrimPrefix(s.URL, "http://")})
	}
	port := func(addr string) string { _, p, _ := strings.Cut(addr, ":"); return p }
	const gone = "127.0.0.1:2"
	addrs[2] = append(addrs[2], gone)
	mesh, err := faultproxy.NewMesh(addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := mesh.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	clients := make([]*http.Client, servers)
	for i := range clients {
		front := &url.URL{Scheme: "socks5", Host: mesh.Front(i)}
		clients[i] = &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(front)}, Timeout: patience}
		t.Cleanup(clients[i].CloseIdleConnections)
	}
	// ask sends a request; the channel receives when it was answered or failed.
	ask := func(from, to int) <-chan bool {
		answered := make(chan bool, 1)
		go func() {
			resp, err := clients[from].Get("http://192.0.2.1:" + port(addrs[to][0]))
			if err == nil {
				resp.Body.Close()
			}
			answered <- err == nil
		}()
		return answered
	}
	// A mesh does not accept a connection to a server that does not listen.
	if _, err := clients[0].Get("http://192.0.2.1:1"); err == nil {
		t.Error("an unused port accepts connections")
	}
	if _, err := clients[0].Get("http://192.0.2.1:" + port(gone)); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error %v from a server that is down, want connection refused", err)
	}
	for _, c := range []struct{ in, out, fresh bool }{
		{false, false, true},
		{true, true, false},
		{true, false, false},
		{false, true, false},
		{true, true, true},
		{true, false, true},
		{false, true, true},
	} {
		if c.fresh { // with new connections, which need both ways
			for _, client := range clients {
				client.CloseIdleConnections()
			}
		}
		mesh.Isolate(0, c.in, c.out)
		to, from, beside := ask(0, 1), ask(1, 0), ask(1, 2)
		if !<-beside {
			t.Fatalf("%+v: no answer between the other servers", c)
		}
		time.Sleep(moment) // long enough for a passing request to arrive
		cut := c.in || c.out
		if len(to)+len(from) > 0 && cut {
			t.Errorf("%+v: an answer across the cut", c)
		}
		if (c.out || cut && c.fresh) && len(heard[1]) > 0 || (c.in || cut && c.fresh) && len(heard[0]) > 0 {
			t.Errorf("%+v: a request across the cut", c)
		}
		if !c.fresh && !c.out {
			<-heard[1] // what is not stopped arrives
			heard[1] <- true
		}
		mesh.Isolate(0, false, false)
		if !<-to || !<-from {
			t.Fatalf("%+v: no answer after the partition healed", c)
		}
		if len(heard[0]) != 1 || len(heard[1]) != 1 {
			t.Errorf("%+v: %d and %d requests after the partition healed", c, len(heard[0]), len(heard[1]))
		}
		for _, h := range heard {
			<-h
		}
	}
}
