package etcd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
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
			t.Errorf("%d bytes of events arrived in %v, then %v; want at most %d, until the context ends", bytes, span, err, most)
		}
	})
}

// gRPC decodes the whole answer to a renewal before any check, and two bytes are an empty key.
func TestRenewalAnswerFitsMemoryLimit(t *testing.T) {
	gets := make([]*pb.RequestOp, batch)
	for i := range gets {
		gets[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k"), Limit: 1}}}
	}
	limit := answerLimit(&pb.TxnRequest{Success: gets})
	header := func(field, size int) []byte { return binary.AppendUvarint([]byte{byte(field<<3 | 2)}, uint64(size)) }
	keys := bytes.Repeat(header(2, 0), (limit-20)/2) // RangeResponse.kvs
	answer := append(header(1, len(keys)), keys...)  // ResponseOp.response_range
	answer = append(header(3, len(answer)), answer...)
	if len(answer) > limit {
		t.Fatalf("the answer has %d bytes, want %d at most", len(answer), limit)
	}
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	var r pb.TxnResponse
	if err := proto.Unmarshal(answer, &r); err != nil {
		t.Fatal(err)
	}
	took := inUse() - before
	if n := len(r.Responses[0].GetResponseRange().Kvs); n != len(keys)/2 || took > 8<<20 {
		t.Errorf("%d keys in %d bytes take %d bytes of memory, want 8 MB at most", n, len(answer), took)
	}
}

// A burst of events as real members send it is not delayed.
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
