package etcd_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// network has in-memory listeners by address.
type network struct {
	mu        sync.Mutex // guards the fields below
	listeners map[string]*bufconn.Listener
	wires     []*fakeConn
	last      int
	garble    func(b []byte) error // changes what new connections of drivers read; nil: no change
}

// fakeConn is one connection of a network. A dead wire passes nothing more and does not close.
type fakeConn struct {
	net.Conn
	dead   chan struct{} // closed when the wire dies
	garble func(b []byte) error
}

func newNetwork() *network { return &network{listeners: make(map[string]*bufconn.Listener)} }

func (n *network) listen() (string, *bufconn.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	addr, l := fmt.Sprintf("host%d:2379", n.last), bufconn.Listen(1<<16)
	n.listeners[addr] = l
	return addr, l
}

// dialStable opens a connection that does not die: for the test's own client, and behind a link.
func (n *network) dialStable(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial tcp %s: connect: connection refused", addr)
	}
	return l.DialContext(ctx)
}

// dial opens a connection for a driver.
func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := n.dialStable(ctx, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	w := &fakeConn{conn, make(chan struct{}), n.garble}
	n.wires = append(n.wires, w)
	return w, nil
}

// setGarble makes garble change what later connections of drivers read.
func (n *network) setGarble(garble func(b []byte) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.garble = garble
}

// connectionCount returns the number of connections that drivers have opened.
func (n *network) connectionCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.wires)
}

// killConnections makes all current connections of drivers die. New ones work.
func (n *network) killConnections() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.wires {
		close(w.dead)
	}
	n.wires = nil
}

func (w *fakeConn) Write(b []byte) (int, error) {
	select {
	case <-w.dead:
		return len(b), nil
	default:
		return w.Conn.Write(b)
	}
}

// Read drops what arrives over a dead connection.
func (w *fakeConn) Read(b []byte) (int, error) {
	for {
		n, err := w.Conn.Read(b)
		select {
		case <-w.dead:
			if err != nil {
				return 0, err
			}
		default:
			if err == nil && w.garble != nil {
				err = w.garble(b[:n])
			}
			return n, err
		}
	}
}

// maxRequests bounds the requests at one virtual moment. More requests mean an endless loop, in which virtual time
// stops.
const maxRequests = 20_000

// fake is an in-memory etcd cluster: keys, leases, transactions and watches, by Go's clock, which may be
// virtual. TestFakeAnswersAsEtcdDoes compares it with a real cluster.
type fake struct {
	t       testing.TB
	id      uint64 // id of the cluster
	floor   int64  // the shortest TTL that it grants
	members []*fakeMember

	mu        sync.Mutex // guards the fields below
	rev       int64
	compacted int64
	term      uint64
	lease     int64 // id of the last lease
	kvs       map[string]*mvccpb.KeyValue
	leases    map[int64]*fakeLease
	history   []*mvccpb.Event // all events, also compacted ones
	changed   chan struct{}   // closed at the next change
	alarm     []string        // active alarms
	moment    time.Time       // time of the last request
	requests  int             // number of requests at that time
}

type fakeLease struct {
	id, ttl int64
	end     time.Time
	timer   *time.Timer
}

// fakeMember is one member. All members share the keys.
type fakeMember struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedClusterServer
	pb.UnimplementedAuthServer

	*fake
	number uint64
	addr   string

	// Tests change the fields below through update.

	status func(*pb.StatusResponse)                 // changes the member's status
	twist  func(method string, reply proto.Message) // changes any answer
	fail   func(method string) error                // the error to answer with
	again  func() bool                              // whether a stream repeats its answer
	login  time.Duration                            // duration of a login
}

func newFake(t testing.TB, n *network, members int) *fake {
	f := &fake{
		t: t, id: 7, floor: 2, rev: 1, term: 2, lease: 1000, kvs: make(map[string]*mvccpb.KeyValue), leases: make(map[int64]*fakeLease),
		changed: make(chan struct{}),
	}
	for range members {
		m := &fakeMember{fake: f, number: uint64(len(f.members) + 1)}
		f.members = append(f.members, m)
		m.serve(n)
	}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, l := range f.leases {
			l.timer.Stop()
		}
	})
	return f
}

func (f *fake) addrs() (all []string) {
	for _, m := range f.members {
		all = append(all, m.addr)
	}
	return all
}

// update changes the member's behaviour.
func (m *fakeMember) update(change func(m *fakeMember)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *fakeMember) serve(n *network) {
	var listener *bufconn.Listener
	m.addr, listener = n.listen()
	s := grpc.NewServer(grpc.UnaryInterceptor(m.serveUnary), grpc.StreamInterceptor(m.serveStream), grpc.WaitForHandlers(true))
	pb.RegisterKVServer(s, m)
	pb.RegisterLeaseServer(s, m)
	pb.RegisterWatchServer(s, m)
	pb.RegisterMaintenanceServer(s, m)
	pb.RegisterClusterServer(s, m)
	pb.RegisterAuthServer(s, m)
	var running sync.WaitGroup
	running.Go(func() { s.Serve(listener) })
	m.t.Cleanup(func() {
		s.Stop()
		running.Wait()
	})
}

func (m *fakeMember) serveUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	m.countRequest()
	method := path.Base(info.FullMethod)
	if err := m.refusalOf(method); err != nil {
		return nil, err
	}
	reply, err := next(ctx, req)
	if err == nil {
		m.changeReply(method, reply)
	}
	return reply, err
}

func (m *fakeMember) refusalOf(method string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail == nil {
		return nil
	}
	return m.fail(method)
}

func (m *fakeMember) changeReply(method string, reply any) {
	m.mu.Lock()
	twist := m.twist
	m.mu.Unlock()
	if message, ok := reply.(proto.Message); ok && twist != nil {
		twist(method, message)
	}
}

func (m *fakeMember) serveStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	method := path.Base(info.FullMethod)
	if err := m.refusalOf(method); err != nil {
		return err
	}
	return next(srv, &fakeStream{s, m, method})
}

type fakeStream struct {
	grpc.ServerStream
	m      *fakeMember
	method string
}

func (s *fakeStream) RecvMsg(v any) error {
	err := s.ServerStream.RecvMsg(v)
	s.m.countRequest()
	return err
}

func (s *fakeStream) SendMsg(v any) error {
	s.m.changeReply(s.method, v)
	s.m.mu.Lock()
	again := s.m.again
	s.m.mu.Unlock()
	for again != nil && again() {
		s.ServerStream.SendMsg(v)
	}
	return s.ServerStream.SendMsg(v)
}

// countRequest fails the test if too many requests arrive at one virtual moment.
func (f *fake) countRequest() {
	f.mu.Lock()
	now := time.Now()
	if !now.Equal(f.moment) {
		f.moment, f.requests = now, 0
	}
	f.requests++
	looped := f.requests > maxRequests
	f.mu.Unlock()
	if looped {
		f.t.Errorf("more than %d requests at one moment: a client retries without a pause", maxRequests)
		time.Sleep(time.Hour)
	}
}

func (m *fakeMember) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: m.id, MemberId: m.number, Revision: m.rev, RaftTerm: m.term}
}

func inRange(key string, from, end []byte) bool {
	switch {
	case len(end) == 0:
		return key == string(from)
	case len(end) == 1 && end[0] == 0:
		return key >= string(from)
	}
	return key >= string(from) && key < string(end)
}

// keysAt returns the keys at a revision. Revision 0 means the current keys, with the changes of a running
// transaction.
func (f *fake) keysAt(rev int64) map[string]*mvccpb.KeyValue {
	if rev == 0 {
		return f.kvs
	}
	kvs := make(map[string]*mvccpb.KeyValue)
	for _, e := range f.history {
		switch {
		case e.Kv.ModRevision > rev:
			return kvs
		case e.Type == mvccpb.Event_DELETE:
			delete(kvs, string(e.Kv.Key))
		default:
			kvs[string(e.Kv.Key)] = e.Kv
		}
	}
	return kvs
}

func findKeys(kvs map[string]*mvccpb.KeyValue, from, end []byte) (all []*mvccpb.KeyValue) {
	for k, kv := range kvs {
		if inRange(k, from, end) {
			all = append(all, kv)
		}
	}
	slices.SortFunc(all, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return all
}

func (m *fakeMember) rangeKeys(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	switch {
	case len(r.Key) == 0:
		return nil, rpctypes.ErrGRPCEmptyKey
	case r.Revision > m.rev:
		return nil, rpctypes.ErrGRPCFutureRev
	case r.Revision > 0 && r.Revision < m.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	}
	all := findKeys(m.keysAt(r.Revision), r.Key, r.RangeEnd)
	resp := &pb.RangeResponse{Header: m.header(), Count: int64(len(all))}
	if r.CountOnly {
		return resp, nil
	}
	all = slices.DeleteFunc(all, func(kv *mvccpb.KeyValue) bool {
		return r.MinCreateRevision > 0 && kv.CreateRevision < r.MinCreateRevision || r.MaxCreateRevision > 0 && kv.CreateRevision > r.MaxCreateRevision ||
			r.MinModRevision > 0 && kv.ModRevision < r.MinModRevision || r.MaxModRevision > 0 && kv.ModRevision > r.MaxModRevision
	})
	if selects := r.MinCreateRevision + r.MaxCreateRevision + r.MinModRevision + r.MaxModRevision; r.SortOrder == pb.RangeRequest_NONE && selects == 0 &&
		r.Limit > 0 && int64(len(all)) > r.Limit+1 {
		all = all[:r.Limit+1] // etcd reads no more keys, even if it then sorts by another target
	}
	if r.SortOrder != pb.RangeRequest_NONE || r.SortTarget != pb.RangeRequest_KEY {
		slices.SortStableFunc(all, func(a, b *mvccpb.KeyValue) int {
			by := strings.Compare(string(a.Key), string(b.Key))
			switch r.SortTarget {
			case pb.RangeRequest_CREATE:
				by = cmp.Compare(a.CreateRevision, b.CreateRevision)
			case pb.RangeRequest_MOD:
				by = cmp.Compare(a.ModRevision, b.ModRevision)
			case pb.RangeRequest_VERSION:
				by = cmp.Compare(a.Version, b.Version)
			}
			if r.SortOrder == pb.RangeRequest_DESCEND {
				by = -by
			}
			return by
		})
	}
	if r.Limit > 0 && int64(len(all)) > r.Limit {
		all, resp.More = all[:r.Limit], true
	}
	for _, kv := range all {
		c := proto.Clone(kv).(*mvccpb.KeyValue)
		if r.KeysOnly {
			c.Value = nil
		}
		resp.Kvs = append(resp.Kvs, c)
	}
	return resp, nil
}

// revisionChanges holds the effects of one revision.
type revisionChanges struct {
	f      *fake
	rev    int64
	events []*mvccpb.Event
}

func (f *fake) beginChanges() *revisionChanges { return &revisionChanges{f: f, rev: f.rev + 1} }

func (c *revisionChanges) commit() {
	if len(c.events) == 0 {
		return
	}
	c.f.rev = c.rev
	c.f.history = append(c.f.history, c.events...)
	close(c.f.changed)
	c.f.changed = make(chan struct{})
}

// wellFormed returns an error for a request that is invalid for any set of keys.
func wellFormed(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) > 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// checkPut returns the reason why a key cannot be put. It changes nothing.
func (f *fake) checkPut(r *pb.PutRequest) error {
	if err := wellFormed(r); err != nil {
		return err
	}
	switch {
	case (r.IgnoreLease || r.IgnoreValue) && f.kvs[string(r.Key)] == nil:
		return rpctypes.ErrGRPCKeyNotFound
	case r.Lease != 0 && f.leases[r.Lease] == nil:
		return rpctypes.ErrGRPCLeaseNotFound
	case len(f.alarm) > 0:
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}

func (c *revisionChanges) put(r *pb.PutRequest) {
	old := c.f.kvs[string(r.Key)]
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, ModRevision: c.rev, CreateRevision: c.rev, Version: 1}
	if old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if r.IgnoreLease {
			kv.Lease = old.Lease
		}
		if r.IgnoreValue {
			kv.Value = old.Value
		}
	}
	c.f.kvs[string(r.Key)] = kv
	c.events = append(c.events, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: proto.Clone(kv).(*mvccpb.KeyValue)})
}

func (c *revisionChanges) delete(from, end []byte) (deleted int64) {
	for _, kv := range findKeys(c.f.kvs, from, end) {
		delete(c.f.kvs, string(kv.Key))
		c.events = append(c.events, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: c.rev}})
		deleted++
	}
	return deleted
}

func (m *fakeMember) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rangeKeys(r)
}

func (m *fakeMember) Put(_ context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkPut(r); err != nil {
		return nil, err
	}
	c := m.beginChanges()
	c.put(r)
	c.commit()
	return &pb.PutResponse{Header: m.header()}, nil
}

func (m *fakeMember) DeleteRange(_ context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(r.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	c := m.beginChanges()
	deleted := c.delete(r.Key, r.RangeEnd)
	c.commit()
	return &pb.DeleteRangeResponse{Header: m.header(), Deleted: deleted}, nil
}

func (m *fakeMember) Compact(_ context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.Revision > m.rev:
		return nil, rpctypes.ErrGRPCFutureRev
	case r.Revision <= m.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	}
	m.compacted = r.Revision
	return &pb.CompactionResponse{Header: m.header()}, nil
}

func (f *fake) evaluate(c *pb.Compare) bool {
	all := findKeys(f.kvs, c.Key, c.RangeEnd)
	if len(all) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		all = []*mvccpb.KeyValue{{}}
	}
	for _, kv := range all {
		var by int
		switch c.Target {
		case pb.Compare_VERSION:
			by = cmp.Compare(kv.Version, c.GetVersion())
		case pb.Compare_CREATE:
			by = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
		case pb.Compare_MOD:
			by = cmp.Compare(kv.ModRevision, c.GetModRevision())
		case pb.Compare_VALUE:
			by = strings.Compare(string(kv.Value), string(c.GetValue()))
		case pb.Compare_LEASE:
			by = cmp.Compare(kv.Lease, c.GetLease())
		}
		if ok := c.Result == pb.Compare_EQUAL && by == 0 || c.Result == pb.Compare_GREATER && by > 0 ||
			c.Result == pb.Compare_LESS && by < 0 || c.Result == pb.Compare_NOT_EQUAL && by != 0; !ok {
			return false
		}
	}
	return true
}

// changesTwice reports whether a branch of a transaction changes a key twice. etcd rejects that, except for
// two deletions.
func changesTwice(ops []*pb.RequestOp) bool {
	for i, op := range ops {
		p := op.GetRequestPut()
		if p == nil {
			continue
		}
		for j, other := range ops {
			if o := other.GetRequestPut(); o != nil && i != j && string(o.Key) == string(p.Key) {
				return true
			}
			if d := other.GetRequestDeleteRange(); d != nil && inRange(string(p.Key), d.Key, d.RangeEnd) {
				return true
			}
		}
	}
	return false
}

func (m *fakeMember) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(r.Compare) > 128 || len(r.Success) > 128 || len(r.Failure) > 128 {
		return nil, rpctypes.ErrGRPCTooManyOps
	}
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if p := op.GetRequestPut(); p != nil {
			if err := wellFormed(p); err != nil {
				return nil, err
			}
		}
	}
	if changesTwice(r.Success) || changesTwice(r.Failure) {
		return nil, rpctypes.ErrGRPCDuplicateKey
	}
	resp := &pb.TxnResponse{Succeeded: true}
	for _, c := range r.Compare {
		resp.Succeeded = resp.Succeeded && m.evaluate(c)
	}
	ops := r.Success
	if !resp.Succeeded {
		ops = r.Failure
	}
	for _, op := range ops { // like the server, before any change
		if p := op.GetRequestPut(); p != nil {
			if err := m.checkPut(p); err != nil {
				return nil, err
			}
		}
	}
	for _, op := range ops {
		if g := op.GetRequestRange(); g != nil {
			if _, err := m.rangeKeys(g); err != nil {
				return nil, err
			}
		}
	}
	c := m.beginChanges()
	for _, op := range ops {
		out := &pb.ResponseOp{}
		switch {
		case op.GetRequestRange() != nil:
			got, err := m.rangeKeys(op.GetRequestRange())
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: got}
		case op.GetRequestPut() != nil:
			c.put(op.GetRequestPut())
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: m.header()}}
		case op.GetRequestDeleteRange() != nil:
			d := op.GetRequestDeleteRange()
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: c.delete(d.Key, d.RangeEnd)}}
		}
		resp.Responses = append(resp.Responses, out)
	}
	c.commit()
	resp.Header = m.header()
	return resp, nil
}

func (m *fakeMember) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case len(m.alarm) > 0:
		return nil, rpctypes.ErrGRPCNoSpace
	case r.TTL > 9_000_000_000:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	case m.leases[r.ID] != nil:
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := &fakeLease{id: r.ID, ttl: max(r.TTL, m.floor)}
	if l.id == 0 {
		m.lease++
		l.id = m.lease
	}
	ttl := time.Duration(min(l.ttl, math.MaxInt64/int64(time.Second))) * time.Second
	l.end = time.Now().Add(ttl)
	l.timer = time.AfterFunc(ttl, func() { m.expireLease(l) })
	m.leases[l.id] = l
	return &pb.LeaseGrantResponse{Header: m.header(), ID: l.id, TTL: l.ttl}, nil
}

func (f *fake) expireLease(l *fakeLease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases[l.id] == l && !time.Now().Before(l.end) {
		f.revokeLease(l)
	}
}

func (f *fake) revokeLease(l *fakeLease) {
	l.timer.Stop()
	delete(f.leases, l.id)
	c := f.beginChanges()
	for _, kv := range findKeys(f.kvs, []byte{0}, []byte{0}) {
		if kv.Lease == l.id {
			c.delete(kv.Key, nil)
		}
	}
	c.commit()
}

func (m *fakeMember) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.leases[r.ID]
	if l == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	m.revokeLease(l)
	return &pb.LeaseRevokeResponse{Header: m.header()}, nil
}

func (m *fakeMember) renewLease(id int64) *pb.LeaseKeepAliveResponse {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.LeaseKeepAliveResponse{Header: m.header(), ID: id}
	if l := m.leases[id]; l != nil {
		l.end = time.Now().Add(time.Duration(l.ttl) * time.Second)
		l.timer.Reset(time.Duration(l.ttl) * time.Second)
		resp.TTL = l.ttl
	}
	return resp
}

func (m *fakeMember) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(m.renewLease(r.ID)); err != nil {
			return err
		}
	}
}

func (m *fakeMember) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.LeaseTimeToLiveResponse{Header: m.header(), ID: r.ID, TTL: -1}
	if l := m.leases[r.ID]; l != nil {
		resp.TTL, resp.GrantedTTL = int64(time.Until(l.end)/time.Second), l.ttl
	}
	return resp, nil
}

func (m *fakeMember) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.LeaseLeasesResponse{Header: m.header()}
	for id := range m.leases {
		resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: id})
	}
	return resp, nil
}

func (m *fakeMember) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.StatusResponse{Header: m.header(), Version: "3.5.99", Leader: 1, RaftTerm: m.term, Errors: m.alarm}
	if m.status != nil {
		m.status(resp)
	}
	return resp, nil
}

// Authenticate accepts any user, after a delay.
func (m *fakeMember) Authenticate(ctx context.Context, _ *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	m.mu.Lock()
	header, slow := m.header(), m.login
	m.mu.Unlock()
	select {
	case <-time.After(slow):
		return &pb.AuthenticateResponse{Header: header, Token: "token"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *fakeMember) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.MemberListResponse{Header: m.header()}
	for _, other := range m.members {
		resp.Members = append(resp.Members, &pb.Member{ID: other.number, ClientURLs: []string{"http://" + other.addr}})
	}
	return resp, nil
}

func (m *fakeMember) Watch(s pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancel(s.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	sending := make(chan struct{}, 1) // a blocked mutex would stop a bubble's time
	send := func(resp *pb.WatchResponse) error {
		sending <- struct{}{}
		defer func() { <-sending }()
		return s.Send(resp)
	}
	watches := make(map[int64]context.CancelFunc)
	for {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		if create := r.GetCreateRequest(); create != nil {
			id := int64(len(watches))
			in, stop := context.WithCancel(ctx)
			watches[id] = stop
			m.mu.Lock()
			h, compacted, from := m.header(), m.compacted, create.StartRevision
			m.mu.Unlock()
			if from == 0 {
				from = h.Revision + 1
			}
			send(&pb.WatchResponse{Header: h, WatchId: id, Created: true})
			if from < compacted {
				send(&pb.WatchResponse{Header: h, WatchId: id, CompactRevision: compacted, Canceled: true})
				continue
			}
			all.Go(func() { m.watchKeys(in, send, create, id, from) })
		}
		if c := r.GetCancelRequest(); c != nil && watches[c.WatchId] != nil {
			watches[c.WatchId]()
			m.mu.Lock()
			h := m.header()
			m.mu.Unlock()
			send(&pb.WatchResponse{Header: h, WatchId: c.WatchId, Canceled: true})
		}
	}
}

func (m *fakeMember) watchKeys(ctx context.Context, send func(*pb.WatchResponse) error, r *pb.WatchCreateRequest, id, from int64) {
	for {
		m.mu.Lock()
		var events []*mvccpb.Event
		first, _ := slices.BinarySearchFunc(m.history, from, func(e *mvccpb.Event, rev int64) int { return cmp.Compare(e.Kv.ModRevision, rev) })
		for _, e := range m.history[first:] {
			if !inRange(string(e.Kv.Key), r.Key, r.RangeEnd) ||
				e.Type == mvccpb.Event_PUT && slices.Contains(r.Filters, pb.WatchCreateRequest_NOPUT) ||
				e.Type == mvccpb.Event_DELETE && slices.Contains(r.Filters, pb.WatchCreateRequest_NODELETE) {
				continue
			}
			events = append(events, proto.Clone(e).(*mvccpb.Event))
		}
		from = max(from, m.rev+1)
		h, changed := m.header(), m.changed
		m.mu.Unlock()
		if len(events) > 0 && send(&pb.WatchResponse{Header: h, WatchId: id, Events: events}) != nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
