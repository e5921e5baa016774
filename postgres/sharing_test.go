package postgres_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// sharedSessionRelay is a relay whose connections all share one session of the server, as with PGlite.
// Notifications of the server go to the connection that has sent the last statement.
type sharedSessionRelay struct {
	session  net.Conn
	mu       sync.Mutex // held from a statement to its answer
	speaks   fixture.PostgreSQL
	greeting []byte // the session's greeting; nil: no client has connected
}

// shareSession starts such a relay and returns its DSN.
func (r *rig) shareSession() string {
	r.Helper()
	session, err := net.Dial("unix", r.socket)
	r.NoError(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	r.NoError(err)
	s := &sharedSessionRelay{session: session}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(client) })
		}
	})
	r.Cleanup(func() {
		listener.Close()
		session.Close()
		all.Wait()
	})
	host, port, _ := strings.Cut(listener.Addr().String(), ":")
	return fmt.Sprintf("host=%s port=%s user=holdfast dbname=postgres sslmode=disable", host, port)
}

func (s *sharedSessionRelay) serve(client net.Conn) {
	defer client.Close()
	var speaks fixture.PostgreSQL
	for first := true; ; first = false {
		req, err := speaks.Request(client)
		if err != nil || req.Bytes[0] == 'X' || first && len(req.Bytes) == 16 { // 16 bytes: a request to cancel a statement
			return
		}
		s.mu.Lock()
		reply := s.greeting
		if !first || reply == nil {
			reply, err = s.sendStatement(req.Bytes)
		}
		if first {
			s.greeting = reply
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
		client.Write(reply)
	}
}

// sendStatement sends a statement to the session and returns the whole reply.
func (s *sharedSessionRelay) sendStatement(statement []byte) (reply []byte, err error) {
	if _, err := s.session.Write(statement); err != nil {
		return nil, err
	}
	for {
		p, err := s.speaks.Reply(s.session)
		if err != nil {
			return nil, io.ErrUnexpectedEOF
		}
		if reply = append(reply, p.Bytes...); p.Last {
			return reply, nil
		}
	}
}

// A driver on a shared session polls and prepares no statement, with or without NoListen, and reports it once.
func TestSharedSessionPollsWithoutPreparedStatements(t *testing.T) {
	for _, noListen := range []bool{false, true} {
		t.Run(fmt.Sprint("NoListen ", noListen), func(t *testing.T) {
			r := startRig(t)
			d, err := postgres.Open(t.Context(), r.shareSession()+" pool_max_conns=8", &postgres.Options{Schema: r.opts.Schema, NoListen: noListen})
			fixture.CloseAtEnd(r.Rig, d, err)
			var mu sync.Mutex
			var events []driver.NodeEvent
			c, err := holdfast.New(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, e)
			}}})
			r.NoError(err)
			turn := func(key string) {
				l, err := c.Acquire(r.WaitContext(), key, &holdfast.AcquireOptions{TTL: endlessTTL})
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for i := range 10 {
						turn("k")
						turn(fmt.Sprint(i))
					}
				})
			}
			all.Wait()
			r.Eventually("it polls", func() bool { return d.Nodes()[0].State == driver.NodePolling })
			r.NoError(c.Close()) // no event comes after Close
			if len(events) != 1 || !strings.Contains(events[0].Err.Error(), "share one session") {
				t.Errorf("events %+v, want one that reports a shared session", events)
			}
		})
	}
}

func TestDoctorReportsSharedSession(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, startDurable(t))
	r.wantOneFinding(r.shareSession(), "pooler", driver.VerdictWarning, "share one session", "session of its own")
}
