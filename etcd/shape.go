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

// Whoever answers at the address of a member may send anything. So answers are held to the form that the requests ask for
// before anybody reads them: this package, and the watches of etcd's own, which end the program at an event without a key and
// at a watch that ends twice.

// maxAnswer bounds an answer, in bytes. The longest are a page of List, and the first keys of a batch of locks.
const maxAnswer = 16 << 20

// checkAnswer returns what is wrong with the form of an answer.
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

// checkTxn looks that each part of a transaction has an answer of its kind.
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
			continue // nobody reads more of it
		}
		if err := checkRange(r.Responses[i].GetResponseRange()); err != nil {
			return err
		}
	}
	return nil
}

// checkedStream holds the answers of a stream to their form.
type checkedStream struct {
	grpc.ClientStream
	ended map[int64]bool // whether a watch has, by its id; in RecvMsg alone, which nobody calls twice at once
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
		err = status.Error(codes.DataLoss, err.Error()) // after which etcd's package makes no new stream by itself
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
	case w.WatchId == clientv3.InvalidWatchID && w.Created == w.Canceled: // a watch that is refused, or news for all
	case w.WatchId < 0, w.Created == begun, ended:
		return errors.New("the answer is not in the form of etcd's: it is of no watch, or of one that begins or ends twice")
	case w.Created || w.Canceled:
		s.ended[w.WatchId] = w.Canceled
	}
	return nil
}

// inSeconds is a time that a member gives in seconds, and no longer than a duration can be.
func inSeconds(n int64) time.Duration {
	const longest = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(n, -1), longest)) * time.Second
}

// hasForeignKey reports a key that is none of those a page was asked for.
func hasForeignKey(kvs []*mvccpb.KeyValue, from string) bool {
	for _, kv := range kvs {
		if string(kv.Key) < from {
			return true
		}
	}
	return false
}
