package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// probeEvery is the interval at which members are asked for their state.
	probeEvery = 2 * time.Second
)

// errNoEtcd reports a service that imitates etcd and has no members
// (findings/kine-session-outlives-its-key.sh).
var errNoEtcd = driverkit.PermanentError{Err: errors.New("it answers as etcd does, but names no cluster and no member, as kine: such a service has no leases " +
	"that locks could build on; use etcd itself, or a driver for the database behind that service")}

// request asks one member for something. It may be repeated, because its answer may be lost.
type request func(context.Context, *clientv3.Client) error

// node is one member of the cluster. Each node has its own client, because a client of all members would
// choose the member itself.
type node struct {
	name     string
	place    int // index in the list of members
	tls      *tls.Config
	renewTLS func(*tls.Config) (*tls.Config, error)                   // nil: no files
	test     string                                                   // a read of this key shows whether the login is valid
	dial     func(ctx context.Context, addr string) (net.Conn, error) // nil: over the network
	work     context.Context                                          // context of all requests
	client   *clientv3.Client
	link     link
	doubt    chan struct{} // receives when a request got no answer in time
	leads    atomic.Uint64 // term in which the member led at the last probe; 0: it did not lead
	login
	union *clusterIDs
}

func newNode(work context.Context, place int, name, test string, opts *Options, u *clusterIDs) (n *node, err error) {
	scheme := "http://"
	if opts.TLS != nil {
		scheme = "https://"
	}
	n = &node{name: name, place: place, tls: opts.TLS, test: test, work: work, union: u, doubt: make(chan struct{}, 1)}
	n.renewTLS = opts.renewTLS
	n.link = newLink(n.tls, n.freshTLS)
	n.username, n.password = opts.Username, opts.Password
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: pace.ShortPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: pace.LongPause},
			MinConnectTimeout: pace.CallTime(),
		}),
		grpc.WithChainUnaryInterceptor(n.interceptUnary), grpc.WithStreamInterceptor(interceptStream), grpc.WithTransportCredentials(n.link),
		grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(connWindowBytes), grpc.WithMaxHeaderListSize(headerBytes),
	}
	if n.dial = opts.dial; n.dial != nil {
		options = append(options, grpc.WithContextDialer(n.dial))
	}
	n.client, err = clientv3.New(clientv3.Config{ // no user and password: see login
		Endpoints: []string{scheme + name}, TLS: opts.TLS, Logger: zap.NewNop(),
		DialKeepAliveTime: opts.keepAlive.Time, DialKeepAliveTimeout: opts.keepAlive.Timeout, PermitWithoutStream: opts.keepAlive.PermitWithoutStream,
		MaxUnaryRetries: 2, // retry reads after a broken connection, and requests during a change of users
		DialOptions:     options,
	})
	return n, err
}

// freshTLS returns the TLS settings for a new connection: the files may have been replaced.
func (n *node) freshTLS() (*tls.Config, error) {
	if n.renewTLS == nil {
		return n.tls, nil
	}
	return n.renewTLS(n.tls)
}

// connect opens a connection without gRPC, to check its transport.
func (n *node) connect(ctx context.Context) (net.Conn, *tls.Config, error) {
	config, err := n.freshTLS()
	if err != nil {
		return nil, nil, err
	}
	var conn net.Conn
	switch {
	case n.dial != nil:
		conn, err = n.dial(ctx, n.name)
	case config != nil:
		conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", n.name)
	default:
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", n.name)
	}
	return conn, config, err
}

// interceptUnary and interceptStream make a request fail at once while the member is down: another member may
// serve it. Both check the size and form of answers, and interceptUnary also the answer's cluster. interceptStream
// replaces the library's own, which always waits.

func (n *node) interceptUnary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	err := next(ctx, method, req, reply, conn, append(opts, grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(answerLimit(req)))...)
	answer, ok := reply.(interface{ GetHeader() *pb.ResponseHeader })
	if err == nil {
		err = checkAnswer(req, reply)
	}
	if isTooLong(err) {
		err = fmt.Errorf("the answer has more than %d KB; look what answers at this address, and which keys other programs keep under the prefix",
			answerLimit(req)>>10)
	}
	if err != nil || !ok {
		return err
	}
	err = n.union.checkAnswer(n.place, answer.GetHeader().GetClusterId())
	if _, status := reply.(*pb.StatusResponse); status {
		return nil // a doctor needs this answer too
	}
	return err
}

func interceptStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := next(ctx, desc, conn, method, append(opts, grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(streamBytes))...)
	if err != nil {
		return nil, err
	}
	return newCheckedStream(s), nil
}

// close waits for a login in progress, and for a while for etcd's client. If a watch is rejected just when its
// context ends, the client's Close hangs forever (watch.go, addSubstream, in 3.7.3).
func (n *node) close() {
	n.login.close()
	closed := make(chan struct{})
	go func() {
		n.client.Close()
		close(closed)
	}()
	late := time.NewTimer(pace.CallTime())
	defer late.Stop()
	select {
	case <-closed:
	case <-late.C:
		n.client.ActiveConnection().Close()
	}
}

// suspendedError is the error of a request whose limit passed while this process was suspended: the answer may
// have arrived, and the member is not at fault.
type suspendedError struct{ error }

// tryRequest calls fn for this member, for limit at most.
func (n *node) tryRequest(ctx context.Context, limit time.Duration, fn request) error {
	begin := time.Now()
	ctx, cancel := driverkit.WithLimit(ctx, limit)
	defer cancel()
	defer context.AfterFunc(n.work, cancel)()
	err := n.runWithLogin(ctx, fn)
	if took := time.Since(begin); isStallError(err) && took > limit+limit/4 {
		return suspendedError{fmt.Errorf("this process stood still for %v, and did not see whether the answer came in %v",
			(took - limit).Round(time.Millisecond), limit)}
	}
	if errors.Is(err, driver.ErrLost) || driverkit.IsPermanent(err) { // an error does not name its cluster
		pb.NewMaintenanceClient(n.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
		if other := n.union.foreignError(n.place); other != nil {
			return other
		}
	}
	return err
}

// runWithLogin calls fn with a login. If the member rejects the login, it logs in again.
func (n *node) runWithLogin(ctx context.Context, fn request) error {
	for again := false; ; again = true {
		in, p, err := n.withLogin(ctx)
		if err != nil {
			return err
		}
		err = fn(in, n.client)
		switch {
		case err == nil || errors.Is(err, driver.ErrLost):
			return err
		case p == nil || !isStale(err):
			return explainError(ctx, err)
		}
		n.forget(p)
		if again { // may go away by itself
			return fmt.Errorf("login: the member rejects the token that it has just issued: %w", err)
		}
	}
}

// explainError rewrites an error of a member for its reader.
func explainError(ctx context.Context, err error) error {
	err = rpctypes.Error(err)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return driver.ErrLost
	case errors.Is(err, errForeign), driverkit.IsPermanent(err):
		return err
	}
	code, text := status.Code(err), status.Convert(err).Message()
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code, text = e.Code(), e.Error()
	}
	if _, inner, ok := strings.Cut(text, `connection error: desc = "`); ok { // internals of gRPC
		text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(inner, `"`), "transport: "), "Error while dialing: ")
	}
	mend := driverkit.URLOptionNames.TLSFix(text)
	if mend != "" {
		mend = "; " + mend
	}
	denied := func(mend string) error {
		return driverkit.PermanentError{Err: fmt.Errorf("%w: %s; %s", driver.ErrAuth, text, mend)}
	}
	switch {
	case ctx.Err() != nil:
		return driverkit.StallError{Err: context.Cause(ctx)}
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return denied("correct user and password")
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return denied("give user and password")
	case code == codes.PermissionDenied:
		return denied("grant a role of the user permission to read and write keys with the prefix")
	case errors.Is(err, rpctypes.ErrAuthOldRevision): // users or roles are being changed right now
		return errors.New(text)
	case code == codes.InvalidArgument, code == codes.Unauthenticated, code == codes.OutOfRange, code == codes.Unimplemented:
		return driverkit.PermanentError{Err: errors.New(text)}
	case code == codes.DeadlineExceeded: // the member's clock is slightly ahead
		return driverkit.StallError{Err: errors.New("no answer in time")}
	case strings.Contains(text, errSilent.Error()):
		return driverkit.StallError{Err: errSilent}
	case isSilentConnError(text):
		return driverkit.StallError{Err: fmt.Errorf("no answer in %v", pace.CallTime())}
	case mend == "" && strings.Contains(text, "server preface"):
		mend = "; if the members speak TLS, write etcds://"
	case mend == "" && strings.Contains(text, "handshake failed"):
		mend = "; if the members do not speak TLS, write etcd://"
	}
	return errors.New(text + mend)
}

// isSilentConnError reports whether text is the error of a connection that gRPC closed because nothing arrived.
func isSilentConnError(text string) bool {
	return strings.Contains(text, "server preface") && strings.Contains(text, net.ErrClosed.Error()) ||
		strings.Contains(text, "handshake failed") && strings.Contains(text, context.DeadlineExceeded.Error())
}

// nodeOrder returns the members in the order in which to watch them. Clients begin with different members.
func (d *Driver) nodeOrder() []*node { return driverkit.AskOrder(d.states, d.nodes, -1) }

// leaderFirst returns the members in the order in which to send requests. A follower forwards writes and lease
// renewals to the leader, and asks the leader before a read: more work for the cluster and one more hop for
// the caller. If two members claim to lead, the later term counts.
func (d *Driver) leaderFirst() []*node {
	leader, latest := -1, uint64(0)
	for _, n := range d.nodes {
		if up, _ := d.states.Up(n.place); up && n.leads.Load() > latest {
			leader, latest = n.place, n.leads.Load()
		}
	}
	return driverkit.AskOrder(d.states, d.nodes, leader)
}

// callAny calls fn with one member after another until one answers, each for limit at most.
func (d *Driver) callAny(ctx context.Context, limit time.Duration, fn request) error {
	if d.calls.Work.Err() != nil {
		return driver.ErrClosed
	}
	if err := d.surveyMembers(ctx, limit); err != nil {
		return err
	}
	failed := d.states.Unavailable(nil)
	for _, n := range d.leaderFirst() {
		err := n.tryRequest(ctx, limit, fn)
		if ctx.Err() != nil && err != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), failed)
		}
		d.reportAnswer(n, err)
		if isStallError(err) {
			n.testConnection()
		}
		if err == nil || errors.Is(err, driver.ErrLost) {
			return err
		}
		failed.Nodes = append(failed.Nodes, driver.NodeError{Node: n.name, Err: err})
		if driverkit.IsPermanent(err) {
			failed.Nodes = failed.Nodes[len(failed.Nodes)-1:]
			break
		}
	}
	return failed
}

// surveyMembers asks all members for their state, for limit at most, until it is known that most belong to one
// cluster.
func (d *Driver) surveyMembers(ctx context.Context, limit time.Duration) error {
	if d.union.isKnown() {
		return nil
	}
	inner, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	type answer struct {
		*node
		err error
	}
	answers := make(chan answer, len(d.nodes))
	for _, n := range d.nodes {
		all.Go(func() { answers <- answer{n, n.tryRequest(inner, limit, n.probe)} })
	}
	failed := d.states.Unavailable(nil)
	for range d.nodes {
		a := <-answers
		if d.union.isKnown() {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), failed)
		}
		d.reportAnswer(a.node, a.err)
		if a.err != nil {
			failed.Nodes = append(failed.Nodes, driver.NodeError{Node: a.name, Err: a.err})
		}
		if driverkit.IsPermanent(a.err) {
			failed.Nodes = failed.Nodes[len(failed.Nodes)-1:]
			break
		}
	}
	return failed
}

// callUntilAnswer repeats a request about a lock with this TTL until it is answered or ctx ends.
func (d *Driver) callUntilAnswer(ctx context.Context, ttl time.Duration, fn request) error {
	return driverkit.RetryUnanswered(ctx, func() error { return d.callAny(ctx, pace.RequestTime(ttl, pace.Members), fn) })
}

// callInTurn repeats fn like callUntilAnswer. Before each attempt it waits for its turn and then calls begun.
func (d *Driver) callInTurn(ctx context.Context, ttl time.Duration, begun func(), fn request) error {
	return d.lane.RetryUnanswered(ctx, begun, func() error { return d.callAny(ctx, pace.RequestTime(ttl, pace.Members), fn) })
}

// watchMember asks a member for its state at intervals, until Close. In between it tests the connection after
// a request without an answer. An answer to that test does not clear the member: its disk may hang.
func (d *Driver) watchMember(n *node) {
	for {
		begin := time.Now()
		err := n.ping(d.calls.Alive)
		if err == nil {
			d.states.SetRoundTrip(n.place, time.Since(begin))
		}
		d.reportAnswer(n, err)
		next := time.NewTimer(driverkit.Jitter(probeEvery))
		for due := false; !due; {
			select {
			case <-next.C:
				due = true
			case <-n.doubt:
				n.ping(d.calls.Alive)
			case <-d.calls.Alive.Done():
				next.Stop()
				return
			}
		}
	}
}

// ping asks for the member's state, which it knows without the other members. If nothing at all arrives, ping
// closes the connection, so that the next request opens a new one. A slow login, which is slow on purpose,
// does not count: ping then asks once more without one.
func (n *node) ping(ctx context.Context) error {
	drop := n.link.closeIfSilent()
	err := n.tryRequest(ctx, pace.CallTime()/2, n.probe)
	if !isStallError(err) || ctx.Err() != nil {
		return err
	}
	if n.isLoggingIn() {
		bare, cancel := context.WithTimeout(ctx, pace.CallTime()/2)
		defer cancel()
		pb.NewMaintenanceClient(n.client.ActiveConnection()).Status(bare, &pb.StatusRequest{})
	}
	drop()
	return err
}

// testConnection makes watchMember test the connection soon.
func (n *node) testConnection() {
	select {
	case n.doubt <- struct{}{}:
	default: // a test is pending
	}
}

func isStallError(err error) bool {
	_, ok := errors.AsType[driverkit.StallError](err)
	return ok
}

// probe asks a member for its state, its term as leader and its cluster. It also reads a key: this keeps the
// login from expiring, or renews it before a request needs it. Whether the user may read that key does not
// matter here.
func (n *node) probe(ctx context.Context, c *clientv3.Client) error {
	resp, err := pb.NewMaintenanceClient(c.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	term := uint64(0)
	if err == nil && resp.Leader == resp.GetHeader().GetMemberId() {
		term = resp.RaftTerm
	}
	n.leads.Store(term)
	switch {
	case err != nil:
		return err
	case resp.GetHeader().GetClusterId() == 0 && resp.GetHeader().GetMemberId() == 0:
		return errNoEtcd
	case n.union.foreignError(n.place) != nil:
		return n.union.foreignError(n.place)
	case resp.Leader == 0:
		return rpctypes.ErrNoLeader
	case n.username == "":
		return nil
	}
	_, err = c.Get(ctx, n.test, clientv3.WithSerializable(), clientv3.WithCountOnly())
	if status.Code(err) == codes.PermissionDenied {
		return nil
	}
	return err
}

// reportAnswer reports a member's answer as its state. An error by a suspension of this process tells nothing
// about the member.
func (d *Driver) reportAnswer(n *node, err error) {
	_, blind := errors.AsType[suspendedError](err)
	if d.calls.Alive.Err() == nil && !blind {
		d.states.Report(n.place, err)
	}
}

// renewal holds the answers about renewed leases.
type renewal struct {
	sent time.Time
	ttls map[clientv3.LeaseID]time.Duration // without leases that are over
	seen *clientv3.TxnResponse              // read after the renewals
}

// renewRequest renews leases and then reads keys. If the leader has changed in between, it does both again:
// the old leader may have confirmed renewals that no longer counted. The read always has the term of the
// current leader.
func renewRequest(leases []clientv3.LeaseID, gets []clientv3.Op, r *renewal) request {
	return func(ctx context.Context, c *clientv3.Client) error {
		for {
			r.sent = time.Now()
			ttls, term, err := keepAlive(ctx, c, leases)
			if err != nil {
				return err
			}
			r.ttls = ttls
			if r.seen, err = c.Txn(ctx).Then(gets...).Commit(); err != nil || r.seen.Header.RaftTerm == term {
				return err
			}
			if !driverkit.Sleep(ctx, pace.ShortPause) {
				return ctx.Err()
			}
		}
	}
}

// keepAlive renews leases. It returns their TTLs and the leader's term as the member knew it before. The
// client library's KeepAliveOnce would retry without a pause while a member is down.
func keepAlive(ctx context.Context, c *clientv3.Client, leases []clientv3.LeaseID) (ttls map[clientv3.LeaseID]time.Duration, term uint64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, id := range leases {
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
			break // Recv returns the reason
		}
	}
	ttls = make(map[clientv3.LeaseID]time.Duration, len(leases))
	term = math.MaxUint64
	for range leases {
		resp, err := stream.Recv()
		if err != nil {
			return nil, 0, err
		}
		ttls[clientv3.LeaseID(resp.ID)] = secondsDuration(resp.TTL)
		term = min(term, resp.Header.RaftTerm)
	}
	return ttls, term, nil
}
