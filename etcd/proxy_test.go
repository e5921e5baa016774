package etcd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// proxy stands between one client and one member and makes the network fail. It passes
// every call on as it is, but knows its method.
type proxy struct {
	addr   string
	server *grpc.Server
	member *grpc.ClientConn

	mu      sync.Mutex // guards what follows
	change  *sync.Cond
	hole    bool             // nothing passes, either way
	refuse  bool             // calls fail at once
	lose    int              // so many replies are lost, and their calls fail
	mute    bool             // what loses a reply hangs
	only    string           // losses are of this method alone
	deposed int              // so many renewals are confirmed by the leader of the term before
	stopped string           // calls of this method wait until it is empty, also if their client has gone
	caught  chan struct{}    // receives when one waits
	late    chan struct{}    // receives when the member has answered one that had waited
	calls   map[*link]string // those under way, and their methods
	counts  map[string]int   // of all calls, by method
}

// link is one call.
type link struct {
	ctx     context.Context
	end     context.CancelFunc
	lost    bool
	muted   bool
	delayed bool
}

// raw passes messages as they are.
type raw struct{}

func (raw) Name() string                  { return "raw" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func newProxy(t testing.TB, member string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		addr: l.Addr().String(), caught: make(chan struct{}, 100), late: make(chan struct{}, 100),
		calls: make(map[*link]string), counts: make(map[string]int),
	}
	p.change = sync.NewCond(&p.mu)
	p.member, err = grpc.NewClient("passthrough:///"+member, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	p.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return p.pass(s) }))
	var running sync.WaitGroup
	running.Go(func() { p.server.Serve(l) })
	t.Cleanup(func() {
		p.set(func() { p.refuse, p.hole, p.stopped = true, false, "" })
		p.server.Stop()
		p.member.Close()
		running.Wait()
	})
	return p
}

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if p.refuse {
		for l := range p.calls {
			l.end()
		}
	}
	p.change.Broadcast()
}

func (p *proxy) pass(s grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(s)
	method := full[strings.LastIndexByte(full, '/')+1:]
	l := &link{}
	l.ctx, l.end = context.WithCancel(s.Context())
	defer l.end()
	if err := p.begin(l, method); err != nil {
		return err
	}
	defer p.set(func() { delete(p.calls, l) })
	defer context.AfterFunc(l.ctx, func() { p.set(func() {}) })()
	ctx := l.ctx
	if l.delayed {
		ctx = context.WithoutCancel(ctx)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	up, err := p.member.NewStream(metadata.NewOutgoingContext(ctx, md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return err
	}
	go p.requests(l, s, up, method)
	err = p.replies(l, s, up, method)
	if l.delayed {
		p.late <- struct{}{}
	}
	switch {
	case l.muted:
		<-l.ctx.Done()
	case l.lost || l.ctx.Err() != nil:
		return status.Error(codes.Unavailable, "the reply is lost")
	}
	return err
}

// begin says what happens to a call.
func (p *proxy) begin(l *link, method string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return status.Error(codes.Unavailable, "the member is down")
	}
	p.calls[l] = method
	p.counts[method]++
	if p.lose > 0 && method != "Status" && (p.only == "" || p.only == method) {
		p.lose--
		l.lost, l.muted = true, p.mute
	}
	l.delayed = p.stopped != "" && p.stopped == method
	return nil
}

func (p *proxy) requests(l *link, s grpc.ServerStream, up grpc.ClientStream, method string) {
	for {
		var msg []byte
		if err := s.RecvMsg(&msg); err != nil {
			if errors.Is(err, io.EOF) {
				up.CloseSend()
			}
			return
		}
		p.mu.Lock()
		if l.delayed {
			p.caught <- struct{}{}
			for p.stopped == method {
				p.change.Wait()
			}
		}
		p.mu.Unlock()
		if !p.open(l) || up.SendMsg(&msg) != nil {
			return
		}
		if l.delayed {
			up.CloseSend()
			return
		}
	}
}

func (p *proxy) replies(l *link, s grpc.ServerStream, up grpc.ClientStream, method string) error {
	for {
		var msg []byte
		if err := up.RecvMsg(&msg); err != nil {
			p.open(l)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if l.lost || !p.open(l) {
			return nil
		}
		if method == "LeaseKeepAlive" {
			msg = p.depose(msg)
		}
		if err := s.SendMsg(&msg); err != nil && !l.delayed {
			return err
		}
	}
}

// depose makes the confirmation of a renewal one of the term before, while deposed says so.
func (p *proxy) depose(msg []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var resp pb.LeaseKeepAliveResponse
	if p.deposed == 0 || proto.Unmarshal(msg, &resp) != nil {
		return msg
	}
	p.deposed--
	resp.Header.RaftTerm--
	msg, _ = proto.Marshal(&resp)
	return msg
}

// open waits while the proxy is a hole, and returns false when the call has ended.
func (p *proxy) open(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.hole && l.ctx.Err() == nil {
		p.change.Wait()
	}
	return l.delayed || l.ctx.Err() == nil
}
