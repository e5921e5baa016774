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

func TestAMeshIsolatesOneServerFromTheOthersAndNoOthers(t *testing.T) {
	t.Parallel()
	const servers = 3
	heard := make([]chan bool, servers) // a request
	var addrs [][]string
	for i := range servers {
		heard[i] = make(chan bool, 10)
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard[i] <- true }))
		t.Cleanup(s.Close)
		addrs = append(addrs, []string{strings.TrimPrefix(s.URL, "http://")})
	}
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
	// ask sends a request; the channel receives once it has an answer or failed.
	ask := func(from, to int) <-chan bool {
		front := &url.URL{Scheme: "socks5", Host: mesh.Front(from)}
		answered := make(chan bool, 1)
		go func() {
			c := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(front), DisableKeepAlives: true}, Timeout: patience}
			_, port, _ := strings.Cut(addrs[to][0], ":")
			resp, err := c.Get("http://192.0.2.1:" + port)
			if err == nil {
				resp.Body.Close()
			}
			answered <- err == nil
		}()
		return answered
	}
	for _, c := range []struct{ in, out bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		mesh.Isolate(0, c.in, c.out)
		to, from, beside := ask(0, 1), ask(1, 0), ask(1, 2)
		if !<-beside {
			t.Fatalf("%+v: no answer between the others", c)
		}
		time.Sleep(moment)
		if len(to)+len(from) > 0 && (c.in || c.out) {
			t.Errorf("%+v: an answer across the cut", c)
		}
		if c.out && len(heard[1]) > 0 || c.in && len(heard[0]) > 0 {
			t.Errorf("%+v: a request across the cut", c)
		}
		mesh.Isolate(0, false, false)
		if !<-to || !<-from {
			t.Fatalf("%+v: no answer after the end", c)
		}
		if len(heard[0]) != 1 || len(heard[1]) != 1 {
			t.Errorf("%+v: %d and %d requests after the end", c, len(heard[0]), len(heard[1]))
		}
		for _, h := range heard {
			<-h
		}
	}
}
