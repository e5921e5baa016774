package etcd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// proxy is a link for gRPC calls: it forwards each call unchanged and reads its method. It can forge the
// confirmation of a renewal, as if it were from the term before.
type proxy struct {
	*fixture.Link
	member *grpc.ClientConn
}

// call is a call in progress.
type call struct {
	fixture.Flow
	ctx                  context.Context
	method               string
	lost, muted, stopped bool
}

// rawCodec is a codec that leaves messages as bytes.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "raw" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (r *rig) proxyTo(member string) *fixture.Link {
	r.Helper()
	p := &proxy{Link: fixture.NewLink()}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
	}
	var l net.Listener
	var err error
	if r.net != nil {
		p.Addr, l = r.net.listen()
		options = append(options, grpc.WithContextDialer(r.net.dialStable))
	} else {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		r.NoError(err)
		p.Addr = l.Addr().String()
	}
	p.member, err = grpc.NewClient("passthrough:///"+member, options...)
	r.NoError(err)
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return p.forward(s) }))
	var running sync.WaitGroup
	running.Go(func() { server.Serve(l) })
	r.Cleanup(func() {
		p.Close()
		server.Stop()
		p.member.Close()
		running.Wait()
	})
	return p.Link
}

func (p *proxy) forward(s grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(s)
	c := &call{method: full[strings.LastIndexByte(full, '/')+1:]}
	c.ctx, c.Cut = context.WithCancel(s.Context())
	defer c.Cut()
	if !p.Enter(&c.Flow) {
		return status.Error(codes.Unavailable, "the member is down")
	}
	defer p.Leave(&c.Flow)
	defer context.AfterFunc(c.ctx, func() { p.Set(func() {}) })()
	c.lost, c.muted, c.stopped = p.Take(fixture.Packet{Kind: c.method, Safe: c.method == "Status"})
	ctx := c.ctx
	if c.stopped {
		ctx = context.WithoutCancel(ctx)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	up, err := p.member.NewStream(metadata.NewOutgoingContext(ctx, md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return err
	}
	go p.forwardRequests(c, s, up)
	err = p.forwardReplies(c, s, up)
	if c.stopped {
		p.NoteLate()
	}
	switch {
	case s.Context().Err() != nil: // ended by its client or its time limit
		return status.FromContextError(s.Context().Err()).Err()
	case c.muted:
		<-c.ctx.Done()
	case c.lost || c.ctx.Err() != nil:
		return status.Error(codes.Unavailable, "the reply is lost")
	}
	return err
}

func (p *proxy) forwardRequests(c *call, s grpc.ServerStream, up grpc.ClientStream) {
	for {
		var msg []byte
		if err := s.RecvMsg(&msg); err != nil {
			if errors.Is(err, io.EOF) {
				up.CloseSend()
			}
			return
		}
		if c.stopped {
			p.Wait(&c.Flow)
		}
		if !p.waitUntilOpen(c) || up.SendMsg(&msg) != nil {
			return
		}
		if c.stopped {
			up.CloseSend()
			return
		}
	}
}

func (p *proxy) forwardReplies(c *call, s grpc.ServerStream, up grpc.ClientStream) error {
	for {
		var msg []byte
		if err := up.RecvMsg(&msg); err != nil {
			p.waitUntilOpen(c)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if c.lost || !p.waitUntilOpen(c) {
			return nil
		}
		var resp pb.LeaseKeepAliveResponse
		if c.method == "LeaseKeepAlive" && p.IsForged() && proto.Unmarshal(msg, &resp) == nil {
			resp.Header.RaftTerm--
			msg, _ = proto.Marshal(&resp)
		}
		if err := s.SendMsg(&msg); err != nil && !c.stopped {
			return err
		}
	}
}

// waitUntilOpen waits while the link drops everything. It returns false if the call has ended.
func (p *proxy) waitUntilOpen(c *call) bool {
	p.Open(func() bool { return c.ctx.Err() == nil })
	return c.stopped || c.ctx.Err() == nil
}
