package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

var (
	sequences = flag.Int("sequences", 60, "how many sequences TestFakeAnswersAsEtcdDoes compares")
	seed      = flag.Uint64("seed", 0, "the first seed of TestFakeAnswersAsEtcdDoes; 0: a random one")
)

// comparedService is one of the two services under comparison.
type comparedService struct {
	kv    pb.KVClient
	lease pb.LeaseClient
	watch pb.WatchClient
	base  int64 // revision at the start of the sequence
}

func newSide(c *clientv3.Client) *comparedService {
	conn := c.ActiveConnection()
	return &comparedService{kv: pb.NewKVClient(conn), lease: pb.NewLeaseClient(conn), watch: pb.NewWatchClient(conn)}
}

// A test that passes on the fake passes on etcd only if both give the same answers. The test sends random steps
// to both and prints its first seed.
func TestFakeAnswersAsEtcdDoes(t *testing.T) {
	r := startAlone(t, 1)
	invented := newFakeRig(t, 1)
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	t.Logf("-seed=%d", first)
	both := [2]*comparedService{newSide(r.direct), newSide(invented.direct)}
	names := [2]string{"etcd", "the fake"}
	steps := 0
	for i := range *sequences {
		s := newScript(first+uint64(i), i)
		for j, b := range both {
			resp, err := b.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("x"), CountOnly: true})
			if err != nil {
				t.Fatalf("%s: %v", names[j], err)
			}
			b.base = resp.Header.Revision
		}
		for range 30 {
			what := s.step()
			var answers [2]string
			for j, b := range both {
				answers[j] = b.sendRequest(t.Context(), what)
			}
			if steps++; answers[0] != answers[1] {
				t.Fatalf("-seed=%d: the answers to\n%s are\n%s\nfrom etcd, and\n%s\nfrom the fake", s.seed, marshalText(what), answers[0], answers[1])
			}
		}
		var seen [2]string
		w := s.watching()
		for j, b := range both {
			seen[j] = b.observeWatch(t.Context(), w)
		}
		if seen[0] != seen[1] {
			t.Fatalf("-seed=%d: the watch\n%s\nsees\n%s\nin etcd, and\n%s\nin the fake", s.seed, marshalText(w), seen[0], seen[1])
		}
	}
	t.Logf("%d sequences of %d steps in all", *sequences, steps)
}

// requestScript generates requests. It counts revisions from the start of the sequence.
type requestScript struct {
	*rand.Rand
	seed   uint64
	prefix string
	lease  int64
	gaps   []int64 // revisions that may be compacted
}

func newScript(seed uint64, number int) *requestScript {
	return &requestScript{rand.New(rand.NewPCG(seed, 0)), seed, fmt.Sprintf("k%d/", number), int64(1+number) << 32, nil}
}

func (s *requestScript) key() []byte { return fmt.Append(nil, s.prefix, s.IntN(5)) }

// span returns a key or a range of keys of this sequence.
func (s *requestScript) span() (from, end []byte) {
	switch s.IntN(3) {
	case 0:
		return []byte(s.prefix), []byte(clientv3.GetPrefixRangeEnd(s.prefix))
	case 1:
		return s.key(), s.key()
	}
	return s.key(), nil
}

func (s *requestScript) id() int64 { return s.lease + s.Int64N(4) }

func (s *requestScript) put() *pb.PutRequest {
	p := &pb.PutRequest{Key: s.key(), Value: fmt.Append(nil, s.IntN(3))}
	switch s.IntN(5) {
	case 0, 1:
		p.Lease = s.id()
	case 2:
		p.IgnoreLease = true
	case 3:
		p.IgnoreValue, p.Value = true, p.Value[:s.IntN(2)]
	}
	return p
}

func (s *requestScript) get() *pb.RangeRequest {
	g := &pb.RangeRequest{CountOnly: s.IntN(6) == 0, KeysOnly: s.IntN(6) == 0, Limit: s.Int64N(4), Serializable: s.IntN(4) == 0}
	g.Key, g.RangeEnd = s.span()
	if s.IntN(2) == 0 {
		g.SortOrder, g.SortTarget = pb.RangeRequest_SortOrder(s.IntN(3)), pb.RangeRequest_SortTarget(s.IntN(4))
	}
	for _, bound := range []*int64{&g.MinCreateRevision, &g.MaxCreateRevision, &g.MinModRevision, &g.MaxModRevision, &g.Revision} {
		if s.IntN(6) == 0 {
			*bound = 1 + s.Int64N(30)
		}
	}
	return g
}

func (s *requestScript) drop() *pb.DeleteRangeRequest {
	d := &pb.DeleteRangeRequest{}
	d.Key, d.RangeEnd = s.span()
	return d
}

func (s *requestScript) op() *pb.RequestOp {
	switch s.IntN(4) {
	case 0:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: s.put()}}
	case 1:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: s.drop()}}
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: s.get()}}
}

func (s *requestScript) compare() *pb.Compare {
	c := &pb.Compare{Result: pb.Compare_CompareResult(s.IntN(4)), Target: pb.Compare_CompareTarget(s.IntN(5)), Key: s.key()}
	if s.IntN(4) == 0 {
		c.Key, c.RangeEnd = s.span()
	}
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: s.Int64N(4)}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: s.Int64N(15)}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: s.Int64N(15)}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: fmt.Append(nil, s.IntN(3))}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: s.id() * s.Int64N(2)}
	}
	return c
}

// step generates one request.
func (s *requestScript) step() proto.Message {
	switch s.IntN(12) {
	case 0, 1:
		return s.put()
	case 2:
		return s.drop()
	case 3, 4:
		return s.get()
	case 5:
		if s.IntN(4) == 0 { // this lease has no key, because it may expire
			return &pb.LeaseGrantRequest{ID: s.lease + 100 + s.Int64N(1e6), TTL: []int64{0, 1, 2, 3, 1 << 40}[s.IntN(5)]}
		}
		return &pb.LeaseGrantRequest{ID: s.id(), TTL: 3600 + s.Int64N(2)}
	case 6:
		return &pb.LeaseRevokeRequest{ID: s.id()}
	case 7:
		return &pb.LeaseKeepAliveRequest{ID: s.id()}
	case 8:
		return &pb.LeaseTimeToLiveRequest{ID: s.id()}
	case 9:
		if s.IntN(4) == 0 {
			s.gaps = append(s.gaps, s.Int64N(12))
			return &pb.CompactionRequest{Revision: s.gaps[len(s.gaps)-1]}
		}
	}
	txn := &pb.TxnRequest{}
	for range s.IntN(3) {
		txn.Compare = append(txn.Compare, s.compare())
	}
	for range 1 + s.IntN(3) {
		txn.Success = append(txn.Success, s.op())
	}
	for range s.IntN(3) {
		txn.Failure = append(txn.Failure, s.op())
	}
	return txn
}

// watching generates a watch of the sequence's changes.
func (s *requestScript) watching() *pb.WatchCreateRequest {
	w := &pb.WatchCreateRequest{StartRevision: 1 + s.Int64N(8)}
	for slices.Contains(s.gaps, w.StartRevision) { // etcd 3.4.23 forgets a deletion at the very revision that is compacted
		w.StartRevision++
	}
	w.Key, w.RangeEnd = []byte(s.prefix), []byte(clientv3.GetPrefixRangeEnd(s.prefix))
	if s.IntN(2) == 0 {
		w.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_FilterType(s.IntN(2))}
	}
	return w
}

func marshalText(m proto.Message) string { return prototext.MarshalOptions{Multiline: true}.Format(m) }

// translateRevisions adds this side's base to the revisions in a request.
func (b *comparedService) translateRevisions(m proto.Message) proto.Message {
	m = proto.Clone(m)
	move := func(revs ...*int64) {
		for _, rev := range revs {
			if *rev > 0 {
				*rev += b.base
			}
		}
	}
	get := func(g *pb.RangeRequest) {
		if g != nil {
			move(&g.MinCreateRevision, &g.MaxCreateRevision, &g.MinModRevision, &g.MaxModRevision, &g.Revision)
		}
	}
	switch r := m.(type) {
	case *pb.RangeRequest:
		get(r)
	case *pb.CompactionRequest:
		r.Revision += b.base
	case *pb.WatchCreateRequest:
		move(&r.StartRevision)
	case *pb.TxnRequest:
		for _, c := range r.Compare {
			switch u := c.TargetUnion.(type) {
			case *pb.Compare_CreateRevision:
				move(&u.CreateRevision)
			case *pb.Compare_ModRevision:
				move(&u.ModRevision)
			}
		}
		for _, op := range append(r.Success, r.Failure...) {
			get(op.GetRequestRange())
		}
	}
	return m
}

// sendRequest sends a request. It returns the answer as if the sequence had begun at revision 0.
func (b *comparedService) sendRequest(ctx context.Context, what proto.Message) string {
	var answer proto.Message
	var err error
	switch r := b.translateRevisions(what).(type) {
	case *pb.PutRequest:
		answer, err = b.kv.Put(ctx, r)
	case *pb.RangeRequest:
		answer, err = b.kv.Range(ctx, r)
	case *pb.DeleteRangeRequest:
		answer, err = b.kv.DeleteRange(ctx, r)
	case *pb.TxnRequest:
		answer, err = b.kv.Txn(ctx, r)
	case *pb.CompactionRequest:
		answer, err = b.kv.Compact(ctx, r)
	case *pb.LeaseGrantRequest:
		answer, err = b.lease.LeaseGrant(ctx, r)
	case *pb.LeaseRevokeRequest:
		answer, err = b.lease.LeaseRevoke(ctx, r)
	case *pb.LeaseTimeToLiveRequest:
		answer, err = b.lease.LeaseTimeToLive(ctx, r)
	case *pb.LeaseKeepAliveRequest:
		answer, err = b.renew(ctx, r)
	}
	if err != nil {
		return status.Convert(err).Code().String() + ": " + status.Convert(err).Message()
	}
	b.subtractBase(answer)
	return marshalText(answer)
}

func (b *comparedService) renew(ctx context.Context, r *pb.LeaseKeepAliveRequest) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := b.lease.LeaseKeepAlive(ctx)
	if err == nil {
		err = s.Send(r)
	}
	if err != nil {
		return nil, err
	}
	return s.Recv()
}

// subtractBase subtracts this side's base from the revisions in an answer, and clears the fields that differ
// between any two clusters.
func (b *comparedService) subtractBase(answer proto.Message) {
	header := func(h *pb.ResponseHeader) {
		if h != nil {
			h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
			h.Revision -= b.base
		}
	}
	if r, ok := answer.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		header(r.GetHeader())
	}
	switch r := answer.(type) {
	case *pb.RangeResponse:
		b.keys(r.Kvs...)
	case *pb.TxnResponse:
		for _, op := range r.Responses { // headers inside depend on the server's version
			switch {
			case op.GetResponseRange() != nil:
				op.GetResponseRange().Header = nil
				b.keys(op.GetResponseRange().Kvs...)
			case op.GetResponsePut() != nil:
				op.GetResponsePut().Header = nil
			case op.GetResponseDeleteRange() != nil:
				op.GetResponseDeleteRange().Header = nil
			}
		}
	case *pb.LeaseTimeToLiveResponse:
		r.TTL = min(r.TTL, 0) // depends on the clock
	}
}

func (b *comparedService) keys(kvs ...*mvccpb.KeyValue) {
	for _, kv := range kvs {
		kv.ModRevision = max(kv.ModRevision-b.base, 0)
		kv.CreateRevision = max(kv.CreateRevision-b.base, 0)
	}
}

// observeWatch returns the events of a watch up to a last change, which it makes, or the end of the watch.
func (b *comparedService) observeWatch(ctx context.Context, w *pb.WatchCreateRequest) string {
	ctx, cancel := context.WithTimeout(ctx, fixture.MaxWait())
	defer cancel()
	last := append(bytes.Clone(w.Key), "last"...)
	put, err := b.kv.Put(ctx, &pb.PutRequest{Key: last})
	_, bad := b.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: last})
	s, worse := b.watch.Watch(ctx)
	if err = errors.Join(err, bad, worse); err != nil {
		return err.Error()
	}
	w = proto.Clone(w).(*pb.WatchCreateRequest)
	w.StartRevision = min(w.StartRevision, put.Header.Revision-b.base)
	if err := s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: b.translateRevisions(w).(*pb.WatchCreateRequest)}}); err != nil {
		return err.Error()
	}
	var seen strings.Builder
	for {
		resp, err := s.Recv()
		if err != nil {
			return seen.String() + err.Error()
		}
		if resp.Created || resp.Canceled {
			fmt.Fprintf(&seen, "created %v, canceled %v, compacted %d\n", resp.Created, resp.Canceled, max(resp.CompactRevision-b.base, 0))
		}
		done := resp.Canceled
		for _, e := range resp.Events {
			done = done || bytes.Equal(e.Kv.Key, last)
			b.keys(e.Kv)
			seen.WriteString(marshalText(e) + "\n")
		}
		if done {
			return seen.String()
		}
	}
}
