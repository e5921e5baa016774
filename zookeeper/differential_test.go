package zookeeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

var (
	oneSeed   = flag.Uint64("seed", 0, "run this seed of the comparison of the fake with a server alone")
	sequences = flag.Int("sequences", 150, "how many seeds of the comparison of the fake with a server to run")
)

// side is one of the two ensembles under comparison, as a client sees it.
type side struct {
	dial     func() (net.Conn, error)
	base     int64         // zxid before the first step
	sessions map[int64]int // by id: order of opening
	clients  [3]*rawClient
}

// rawClient is a client that writes the protocol itself.
type rawClient struct {
	*side
	conn     net.Conn
	id       int64
	password string
	xid      int32
}

// open sends a greeting over a new connection and describes the answer.
func (s *rawClient) open(id int64, password string, seen int64, timeout int32) string {
	conn, err := s.dial()
	if err != nil {
		return err.Error()
	}
	conn.SetDeadline(time.Now().Add(fixture.MaxWait()))
	conn.Write((&juteWriter{}).int32(0).int64(seen).int32(timeout).int64(id).text(password).bool(false).packet())
	p, err := frame(conn)
	if err != nil {
		conn.Close()
		return "refused"
	}
	r := juteReader{p}
	r.int32()
	granted, sid, word := r.int32(), r.int64(), r.text()
	if sid == 0 {
		_, err := frame(conn)
		conn.Close()
		return fmt.Sprintf("no session, %d ms, ends: %v", granted, err != nil)
	}
	s.conn, s.id, s.password = conn, sid, word
	if _, known := s.sessions[sid]; !known {
		s.sessions[sid] = len(s.sessions)
	}
	return fmt.Sprintf("session %d, %d ms, a password of %d bytes", s.sessions[sid], granted, len(word))
}

func frame(r io.Reader) ([]byte, error) {
	word := make([]byte, 4)
	if _, err := io.ReadFull(r, word); err != nil {
		return nil, err
	}
	p := make([]byte, binary.BigEndian.Uint32(word))
	_, err := io.ReadFull(r, p)
	return p, err
}

// ask sends one request. It describes the events before the answer, and the answer.
func (s *rawClient) ask(op int32, body *juteWriter) string {
	s.xid++
	xid := s.xid
	switch op {
	case opPing:
		xid = -2
	case opAuth:
		xid = -4
	}
	head := (&juteWriter{}).int32(xid).int32(op)
	head.b = append(head.b, body.b...)
	s.conn.Write(head.packet())
	var seen []string
	for {
		p, err := frame(s.conn)
		if err != nil {
			return strings.Join(append(seen, "closed"), "; ")
		}
		r := &juteReader{p}
		got, zxid, code := r.int32(), r.int64(), r.int32()
		if got == -1 {
			seen = append(seen, fmt.Sprintf("event %d, state %d, %s, zxid %d", r.int32(), r.int32(), r.text(), zxid))
			continue
		}
		text := fmt.Sprintf("answer %d at %s, error %d", got, s.at(zxid), code)
		if len(r.b) > 0 {
			text += ": " + s.describe(op, r)
		}
		if len(r.b) > 0 {
			text += fmt.Sprintf(", and %d bytes", len(r.b))
		}
		return strings.Join(append(seen, text), "; ")
	}
}

// awaitEnd waits until the other side ends the connection, and describes all packets before that. It sends
// nothing: a server that is about to end a connection answers requests that it reads meanwhile, in the same
// write.
func (s *rawClient) awaitEnd() string {
	for packets := 0; ; packets++ {
		if _, err := frame(s.conn); errors.Is(err, os.ErrDeadlineExceeded) {
			return "still open"
		} else if err != nil {
			return fmt.Sprintf("closed after %d packets", packets)
		}
	}
}

// at returns a zxid relative to the first step.
func (s *rawClient) at(zxid int64) string {
	if zxid <= 0 {
		return fmt.Sprint(zxid)
	}
	return fmt.Sprintf("+%d", zxid-s.base)
}

func (s *rawClient) describe(op int32, r *juteReader) string {
	switch op {
	case opSync, opCreate:
		return r.text()
	case opExists, opSetData:
		return s.stat(r)
	case opGetData:
		return fmt.Sprintf("%q %s", r.text(), s.stat(r))
	case opGetChildren:
		var names []string
		for range r.int32() {
			names = append(names, r.text())
		}
		slices.Sort(names)
		return fmt.Sprintf("%q %s", names, s.stat(r))
	case opCreate2, opContainer:
		return r.text() + " " + s.stat(r)
	case opMulti:
		var parts []string
		for {
			kind, done, code := r.int32(), r.bool(), r.int32()
			text := fmt.Sprint(kind, done, code)
			if done {
				return strings.Join(append(parts, text), ", ")
			}
			switch kind {
			case -1:
				text += fmt.Sprint(" ", r.int32())
			case opCreate, opCreate2, opSetData:
				text += " " + s.describe(kind, r)
			}
			parts = append(parts, text)
		}
	}
	return ""
}

func (s *rawClient) stat(r *juteReader) string {
	czxid, mzxid := s.at(r.int64()), s.at(r.int64())
	r.take(16) // skip the times
	version, cversion, aversion, owner := r.int32(), r.int32(), r.int32(), r.int64()
	whose := fmt.Sprint(owner)
	if n, ok := s.sessions[owner]; ok {
		whose = fmt.Sprint("session ", n)
	}
	return fmt.Sprintf("{%s %s %d %d %d %s %d %d %s}", czxid, mzxid, version, cversion, aversion, whose, r.int32(), r.int32(), s.at(r.int64()))
}

// step is an action on either side. It does not depend on the outcome of earlier steps.
type step struct {
	name string
	do   func(s *side) string
}

// drawSteps draws the steps of one seed, in a folder of its own.
func drawSteps(seed uint64, root string) []step {
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(all ...string) string { return all[rnd.IntN(len(all))] }
	path := func() string {
		at := root + pick("", "/a", "/a", "/b", "/c", "/a/x", "/a/y", "/b/x", "/a/x/z")
		if rnd.IntN(5) == 0 {
			at += fmt.Sprintf("/s%010d", rnd.IntN(4))
		}
		return at
	}
	access := func(j *juteWriter) {
		scheme, id := "world", "anyone"
		if rnd.IntN(3) == 0 {
			scheme, id = "auth", ""
		}
		perms := int32(31)
		if rnd.IntN(6) == 0 {
			perms = rnd.Int32N(32)
		}
		j.int32(1).int32(perms).text(scheme).text(id)
	}
	version := func() int32 { return []int32{-1, -1, -1, 0, 1}[rnd.IntN(5)] }
	change := func(ops ...int32) (op int32, body *juteWriter) {
		body = &juteWriter{}
		switch op = ops[rnd.IntN(len(ops))]; op {
		case opCreate, opCreate2, opContainer:
			at, flags := path(), int32(4)
			if op != opContainer {
				if flags = rnd.Int32N(4); flags >= 2 {
					at += "/s"
				}
			}
			body.text(at).text(pick("", "value"))
			access(body)
			body.int32(flags)
		case opDelete, opCheck:
			body.text(path()).int32(version())
		case opSetData:
			body.text(path()).text(pick("", "one", "another")).int32(version())
		}
		return op, body
	}
	request := func() (op int32, body *juteWriter) {
		switch rnd.IntN(10) {
		case 0, 1, 2:
			return change(opCreate, opCreate2, opCreate2, opContainer)
		case 3:
			return change(opDelete)
		case 4:
			return change(opSetData)
		case 5, 6:
			op = []int32{opExists, opGetData, opGetData, opGetChildren}[rnd.IntN(4)]
			return op, (&juteWriter{}).text(path()).bool(op == opGetData && rnd.IntN(2) == 0)
		case 7, 8:
			body = &juteWriter{}
			for range 1 + rnd.IntN(4) {
				part, words := change(opCreate, opCreate2, opDelete, opSetData, opCheck, opCheck)
				body.int32(part).bool(false).int32(-1)
				body.b = append(body.b, words.b...)
			}
			return opMulti, body.int32(-1).bool(true).int32(-1)
		}
		return opSync, (&juteWriter{}).text(path())
	}
	all := []step{{"begin", func(s *side) string {
		return s.clients[0].ask(opCreate2, (&juteWriter{}).text(root).text("").int32(1).int32(31).text("world").text("anyone").int32(0))
	}}}
	for range 40 {
		i := rnd.IntN(3)
		switch n := rnd.IntN(40); n {
		case 0:
			scheme := pick("digest", "digest", "digest", "nothing")
			login := pick("u:p", "u:p", "v:p")
			all = append(all, step{fmt.Sprintf("client %d: login %s %s", i, scheme, login), func(s *side) string {
				c := s.clients[i]
				text := c.ask(opAuth, (&juteWriter{}).int32(0).text(scheme).text(login))
				if scheme != "digest" {
					text += "; " + c.awaitEnd()
					c.conn.Close()
					text += "; " + c.open(c.id, c.password, 0, 60_000)
				}
				return text
			}})
		case 1:
			all = append(all, step{fmt.Sprintf("client %d: goodbye", i), func(s *side) string {
				c := s.clients[i]
				text := c.ask(opClose, &juteWriter{}) + "; " + c.awaitEnd() + "; " + c.open(c.id, c.password, 0, 60_000)
				return text + "; " + c.open(0, string(make([]byte, 16)), 0, 60_000)
			}})
		case 2:
			all = append(all, step{fmt.Sprintf("client %d: comes back", i), func(s *side) string {
				c := s.clients[i]
				c.conn.Close()
				return c.open(c.id, c.password, 0, 60_000)
			}})
		case 3:
			all = append(all, step{fmt.Sprintf("client %d: comes back beside its connection", i), func(s *side) string {
				c := s.clients[i]
				old := *c
				text := c.open(c.id, c.password, 0, 60_000)
				defer old.conn.Close()
				return text + "; " + old.ask(opCreate, (&juteWriter{}).text(root+"/old").text("").int32(1).int32(31).text("world").text("anyone").int32(0))
			}})
		case 4:
			word, seen := string(make([]byte, 16)), int64(0)
			if rnd.IntN(2) == 0 {
				word, seen = "", 1<<60
			}
			all = append(all, step{fmt.Sprintf("client %d: a greeting with %q after %#x", i, word, seen), func(s *side) string {
				c := *s.clients[i]
				if word == "" {
					word = c.password
				}
				return c.open(c.id, word, seen, 60_000)
			}})
		case 5:
			timeout := []int32{0, 100, 5000, 1_000_000}[rnd.IntN(4)]
			all = append(all, step{fmt.Sprintf("a session of %d ms", timeout), func(s *side) string {
				c := &rawClient{side: s}
				text := c.open(0, string(make([]byte, 16)), 0, timeout)
				defer c.conn.Close()
				return text + "; " + c.ask(opClose, &juteWriter{})
			}})
		default:
			op, body := request()
			all = append(all, step{fmt.Sprintf("client %d: request %d %q", i, op, body.b), func(s *side) string { return s.clients[i].ask(op, body) }})
		}
	}
	return all
}

// beginSide opens the sessions for a seed.
func beginSide(dial func() (net.Conn, error)) (*side, error) {
	s := &side{dial: dial, sessions: make(map[int64]int)}
	for i := range s.clients {
		s.clients[i] = &rawClient{side: s}
		if text := s.clients[i].open(0, string(make([]byte, 16)), 0, 60_000); !strings.HasPrefix(text, "session") {
			return s, fmt.Errorf("client %d: %s", i, text)
		}
	}
	c := s.clients[0]
	c.conn.Write((&juteWriter{}).int32(1).int32(opSync).text("/").packet())
	p, err := frame(c.conn)
	if err == nil {
		s.base = int64(binary.BigEndian.Uint64(p[4:]))
	}
	c.xid = 1
	return s, err
}

func (s *side) end() {
	for _, c := range s.clients {
		if c != nil && c.conn != nil {
			c.ask(opClose, &juteWriter{})
			c.conn.Close()
		}
	}
}

// The test runs the same random steps on the fake and on a server. It compares everything that the clients
// receive: answers, versions, zxids, events and ends of connections.
func TestFakeAnswersAsServersDo(t *testing.T) {
	r := startAlone(t, 1)
	f := newFake(t, 1)
	real := func() (net.Conn, error) { return net.Dial("tcp", r.addrs[0]) }
	imitated := func() (net.Conn, error) { return f.dial(context.Background(), f.members[0].addr) }
	first, n := rand.Uint64(), *sequences
	if *oneSeed != 0 {
		first, n = *oneSeed, 1
	}
	// A server deletes empty containers each minute, and the fake does so at another time.
	end := time.Now().Add(reapEvery - 15*time.Second)
	compared := 0
	for seed := first; compared < n && time.Now().Before(end) && !t.Failed(); seed++ {
		a, err := beginSide(real)
		r.NoError(err)
		b, err := beginSide(imitated)
		r.NoError(err)
		for i, st := range drawSteps(seed, fmt.Sprintf("/d%d", seed)) {
			want, got := st.do(a), st.do(b)
			for j := range a.clients {
				want += " | " + a.clients[j].ask(opPing, &juteWriter{})
				got += " | " + b.clients[j].ask(opPing, &juteWriter{})
			}
			if got != want {
				t.Errorf("seed %d, step %d, %s\nserver: %s\nfake:   %s", seed, i, st.name, want, got)
				break
			}
		}
		a.end()
		b.end()
		compared++
	}
	t.Logf("%d sequences from seed %d", compared, first)
}

// A session goes from member to member while its old connections are open.
func TestFakeMovesSessionsAsServersDo(t *testing.T) {
	r := startRig(t)
	f := newFake(t, 3)
	root := r.opts.Path[strings.LastIndexByte(r.opts.Path, '/'):]
	play := func(dial func(member int) (net.Conn, error)) (seen []string) {
		s := &side{sessions: make(map[int64]int), base: 1 << 62} // above the zxid of any answer
		create := func(c *rawClient, name string) {
			text := c.ask(opCreate, (&juteWriter{}).text(root+name).text("").int32(1).int32(31).text("world").text("anyone").int32(0))
			seen = append(seen, fmt.Sprintf("create %q: done %v, closed %v", name, strings.Contains(text, "error 0"), strings.HasSuffix(text, "closed")))
		}
		open := func(member int, old *rawClient) *rawClient {
			c := &rawClient{side: s, xid: 100}
			s.dial = func() (net.Conn, error) { return dial(member) }
			id, password := int64(0), string(make([]byte, 16))
			if old != nil {
				id, password, c.xid = old.id, old.password, old.xid+100
			}
			seen = append(seen, c.open(id, password, 0, 60_000))
			t.Cleanup(func() { c.conn.Close() })
			return c
		}
		first := open(0, nil)
		create(first, "")
		second := open(1, first)
		create(second, "/a")
		seen = append(seen, fmt.Sprint("read ", strings.Contains(first.ask(opExists, (&juteWriter{}).text("/").bool(false)), "error 0")))
		create(first, "/b")
		third := open(1, second)
		create(third, "/c")
		create(second, "/d")
		fourth := open(2, third)
		create(third, "/e") // before the new connection has sent anything
		create(fourth, "/f")
		fourth.ask(opClose, &juteWriter{})
		return seen
	}
	want := play(func(member int) (net.Conn, error) { return net.Dial("tcp", r.addrs[member]) })
	got := play(func(member int) (net.Conn, error) { return f.dial(context.Background(), f.members[member].addr) })
	if !slices.Equal(got, want) {
		t.Errorf("server: %q\nfake:   %q", want, got)
	}
	t.Logf("%q", got)
}
