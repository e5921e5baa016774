package etcd

import (
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Another program at a member's address may send anything. So this file checks the form of each answer before
// this package or the watches of etcd's client read it: the client panics on an event without a key and on a
// watch that ends twice.

// maxAnswer bounds an answer in bytes. The longest are a page of List and the first keys of a batch of locks.
const maxAnswer = 16 << 20

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

// checkedStream checks the form of a stream's answers.
type checkedStream struct {
	grpc.ClientStream
	ended map[int64]bool // by watch id; used only in RecvMsg, which is not called concurrently
}

func (s *checkedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		err = checkAnswer(nil, m)
	}
	if w, ok := m.(*pb.WatchResponse); ok && err == nil {
		err = s.checkWatch(w)
	}
	if _, known := status.FromError(err); err != nil && !known {
		err = status.Error(codes.DataLoss, err.Error()) // after this code etcd's client opens no new stream by itself
	}
	return err
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

// inSeconds converts a member's number of seconds, bounded by the longest duration.
func inSeconds(n int64) time.Duration {
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
