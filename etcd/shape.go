package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// Another program at a member's address may send anything. So this file checks the form of each answer before
// this package or the watches of etcd's client read it: the client panics on an event without a key and on a
// watch that ends twice.

// Bounds of messages. A message may take 80 times its size in the client's memory: two bytes are an empty key,
// and gRPC stores each one-byte frame separately. So no request accepts a longer answer than it needs.
const (
	// answerBytes bounds an answer beside its keys, and keyBytes adds for each key that the request asks for.
	answerBytes = 32 << 10
	keyBytes    = 2 << 10
	maxAnswer   = 8 << 20

	// streamBytes bounds a message of a stream. The longest messages carry the events that a member sends late.
	streamBytes = 128 << 10
	// windowBytes bounds what a member may send on a stream, and connWindowBytes on a connection, before the
	// client has received it. gRPC would raise its own windows to 16 MB.
	windowBytes     = 64 << 10
	connWindowBytes = 1 << 20
	// headerBytes bounds the headers of an answer. They have the text of an error.
	headerBytes = 16 << 10

	// eventBytes is the memory of an event without its key and value. A stream delivers up to eventBurst bytes
	// of events at once, and eventRate per second after that.
	eventBytes = 256
	eventBurst = 4 << 20
	eventRate  = 1 << 20
)

// answerLimit returns the largest size of an answer to req.
func answerLimit(req any) int {
	keys := int64(0)
	switch r := req.(type) {
	case *pb.RangeRequest:
		keys = countKeys(r)
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			keys += countKeys(op.GetRequestRange())
		}
	}
	return int(min(answerBytes+keys*keyBytes, maxAnswer))
}

// countKeys returns the number of keys that a read asks for.
func countKeys(r *pb.RangeRequest) int64 {
	switch {
	case r == nil || r.CountOnly:
		return 0
	case len(r.RangeEnd) == 0:
		return 1
	}
	return min(max(r.Limit, 0), maxAnswer/keyBytes)
}

// checkAnswer returns an error if an answer is malformed.
func checkAnswer(req, reply any) error {
	if r, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok && r.GetHeader() == nil {
		return errors.New("the answer is not in the form of etcd's: it has no header")
	}
	switch r := reply.(type) {
	case *pb.RangeResponse:
		return checkRange(r)
	case *pb.TxnResponse:
		return checkTxn(req, r)
	}
	return nil
}

func checkRange(r *pb.RangeResponse) error {
	if r == nil || r.Count < int64(len(r.Kvs)) || r.More && len(r.Kvs) == 0 {
		return errors.New("the answer is not in the form of etcd's: its keys are not as many as it names")
	}
	return nil
}

// checkTxn checks that each operation of a transaction has an answer of its kind.
func checkTxn(req any, r *pb.TxnResponse) error {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return nil
	}
	asked := txn.Success
	if !r.Succeeded {
		asked = txn.Failure
	}
	if len(asked) != len(r.Responses) || len(txn.Compare) == 0 && !r.Succeeded {
		return fmt.Errorf("the answer is not in the form of etcd's: a transaction of %d parts has %d answers", len(asked), len(r.Responses))
	}
	for i, op := range asked {
		if op.GetRequestRange() == nil {
			continue // nothing else of it is read
		}
		if err := checkRange(r.Responses[i].GetResponseRange()); err != nil {
			return err
		}
	}
	return nil
}

// checkedStream checks the form of a stream's answers. It also slows events down: etcd's client keeps the events
// that its watches have not read, without a bound.
//
// RecvMsg, which is not called concurrently, uses the fields.
type checkedStream struct {
	grpc.ClientStream
	ended map[int64]bool // by watch id
	owed  int            // bytes of events that count towards eventBurst, at the time since
	since time.Time
}

func newCheckedStream(s grpc.ClientStream) *checkedStream {
	return &checkedStream{ClientStream: s, ended: make(map[int64]bool), since: time.Now()}
}

func (s *checkedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	final := isTooLong(err) // the member would send the same message on a new stream
	if err == nil {
		err = checkAnswer(nil, m)
	}
	if w, ok := m.(*pb.WatchResponse); ok && err == nil {
		if err = s.checkWatch(w); err == nil {
			err = s.slowEvents(w)
		}
	}
	if _, known := status.FromError(err); err != nil && (!known || final) {
		err = status.Error(codes.DataLoss, err.Error()) // after this code etcd's client opens no new stream by itself
	}
	return err
}

// isTooLong reports whether gRPC has dropped a message because of its size.
func isTooLong(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}

// slowEvents waits until the stream may deliver a message. A member that sends only events of its watches never
// makes it wait.
func (s *checkedStream) slowEvents(w *pb.WatchResponse) error {
	if w.Created || w.Canceled { // one for each watch
		return nil
	}
	now := time.Now()
	s.owed = max(s.owed-int(now.Sub(s.since).Seconds()*eventRate), 0)
	s.since = now
	s.owed += proto.Size(w) + eventBytes*max(len(w.Events), 1)
	if over := s.owed - eventBurst; over > 0 && !driverkit.Sleep(s.Context(), time.Second*time.Duration(over)/eventRate) {
		return context.Cause(s.Context())
	}
	return nil
}

func (s *checkedStream) checkWatch(w *pb.WatchResponse) error {
	for _, e := range w.Events {
		if e.Kv == nil {
			return errors.New("the answer is not in the form of etcd's: an event has no key")
		}
	}
	ended, begun := s.ended[w.WatchId]
	switch {
	case w.Fragment:
		return errors.New("the answer is not in the form of etcd's: it is a fragment, which nobody has asked for")
	case w.WatchId == clientv3.InvalidWatchID && w.Created == w.Canceled: // a rejected watch, or a message to all watches
	case w.WatchId < 0, w.Created == begun, ended:
		return errors.New("the answer is not in the form of etcd's: it is of no watch, or of one that begins or ends twice")
	case w.Created || w.Canceled:
		s.ended[w.WatchId] = w.Canceled
	}
	return nil
}

// secondsDuration converts a member's number of seconds, bounded by the longest duration.
func secondsDuration(n int64) time.Duration {
	const longest = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(n, -1), longest)) * time.Second
}

// hasForeignKey reports whether an answer has a key outside the requested page.
func hasForeignKey(kvs []*mvccpb.KeyValue, from string) bool {
	for _, kv := range kvs {
		if string(kv.Key) < from {
			return true
		}
	}
	return false
}
