package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
)

// eventStream sends events of a watch without end.
type eventStream struct {
	grpc.ClientStream
	ctx   context.Context
	begun bool
}

func (s *eventStream) Context() context.Context { return s.ctx }

func (s *eventStream) RecvMsg(m any) error {
	w := m.(*pb.WatchResponse)
	w.Header, w.Created = &pb.ResponseHeader{}, !s.begun
	if s.begun {
		w.Events = []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: []byte("k"), Value: make([]byte, 1000)}}}
	}
	s.begun = true
	return nil
}

// etcd's client keeps each event until its watch reads it.
func TestEndlessEventsAreSlowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const span = 10 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		s := newCheckedStream(&eventStream{ctx: ctx})
		bytes, err := 0, error(nil)
		for bytes < 100<<20 && err == nil {
			var w pb.WatchResponse
			if err = s.RecvMsg(&w); err == nil {
				bytes += 1000 * len(w.Events)
			}
		}
		const most = eventBurst + 2*eventRate*int(span/time.Second)
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || bytes > most || bytes < eventBurst/2 {
			t.Errorf("%d bytes of events arrived in %v, and then %v; want %d at most, until the context ends", bytes, span, err, most)
		}
	})
}

// A burst that real members send waits for nothing.
func TestBurstOfEventsIsNotSlowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		s := newCheckedStream(&eventStream{ctx: t.Context()})
		for range 2000 {
			if err := s.RecvMsg(new(pb.WatchResponse)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took > 0 { // clock: virtual time
			t.Errorf("2000 events took %v", took)
		}
	})
}
