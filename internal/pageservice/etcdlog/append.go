package etcdlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// appender appends batches, one after the other. It is used by one goroutine.
type appender struct {
	*Log
	term     *cluster.Term
	head     head  // that it has written or seen last
	seen     int64 // revision of the head; 0: there is none
	gate     int64 // revision of the gate; 0: it has to be opened
	revision int64 // of etcd, then
	bytes    int   // of the last batch

	failed time.Time // when a failure was logged last; zero if the last append succeeded
}

// errMoved: the head is not where the appender left it, although its term goes on.
var errMoved = fmt.Errorf("%w: another appender has written to the log in this term", pageservice.ErrDemoted)

var errFenceGone = fmt.Errorf("%w: its election key is gone", pageservice.ErrDemoted)

// append appends a batch, whose term, index and chain it sets; more goes into the same transaction. It changes
// a.head to change's only if it succeeds. It returns when the outcome is clear or the term is over: an error that wraps
// ErrDemoted means that this appender must not be used any more, and any other one that nothing was appended.
func (a *appender) append(ctx context.Context, b batch, change func(*head), more ...clientv3.Op) error {
	b.by, b.term, b.index, b.prev = a.by, a.term.Revision, a.head.Index+1, a.head.Chain
	value, sum := b.encode()
	a.bytes = len(value)
	next := a.head
	next.stamp = stamp{jsonFormat, a.by}
	next.Index, next.Chain, next.Term = b.index, sum, b.term
	if change != nil {
		change(&next)
	}
	batchKey, headKey := a.keys.batch(b.index), a.keys.head()
	txn := func(ctx context.Context) (*clientv3.TxnResponse, error) {
		if err := a.open(ctx); err != nil {
			return nil, err
		}
		return a.cluster.Client().Txn(ctx).
			If(a.term.Fence(), clientv3.Compare(clientv3.ModRevision(headKey), "=", a.seen), clientv3.Compare(clientv3.CreateRevision(batchKey), "=", 0),
				clientv3.Compare(clientv3.ModRevision(a.keys.gate()), "=", a.gate)).
			Then(append([]clientv3.Op{clientv3.OpPut(batchKey, string(value)), clientv3.OpPut(headKey, encodeJSON(next))}, more...)...).
			Else(clientv3.OpGet(batchKey), clientv3.OpGet(headKey), clientv3.OpGet(a.term.Key, clientv3.WithKeysOnly())).
			Commit()
	}
	for {
		if err := a.ended(ctx); err != nil {
			return err
		}
		sent := host.SinceBoot()
		once, cancel := a.call(ctx)
		answer, err := txn(once)
		cancel()
		switch {
		case err == nil && answer.Succeeded:
			a.term.Proved(sent)
			a.head, a.seen, a.revision = next, answer.Header.Revision, answer.Header.Revision
			return nil
		case err == nil:
			again, err := a.sort(answer, value, next)
			if !again {
				return err
			}
			continue
		case errors.Is(err, pageservice.ErrDemoted):
			return err
		case answered(err):
			switch done, clear := a.settle(ctx, batchKey, value, next); {
			case done:
				return nil
			case clear:
				return fmt.Errorf("etcd: %w", err)
			}
			a.report(fmt.Errorf("etcd: %w; whether the write was done nevertheless is not clear: writes wait until it is", err))
		}
		pause(ctx, retryPause)
	}
}

// reportEvery is how often it is logged that writes fail.
const reportEvery = 10 * time.Second

// report logs how writes fare.
func (a *appender) report(err error) {
	switch {
	case err != nil && (a.failed.IsZero() || time.Since(a.failed) >= reportEvery):
		a.failed = time.Now()
		a.o.Logger.Error("page log: writes fail", "err", err)
	case err == nil && !a.failed.IsZero():
		a.failed = time.Time{}
		a.o.Logger.Info("page log: writes succeed again")
	}
}

// ended returns an error when nothing can be appended any more.
func (a *appender) ended(ctx context.Context) error {
	if err := a.term.Reason(); err != nil {
		return fmt.Errorf("%w: %w", pageservice.ErrDemoted, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", pageservice.ErrDemoted, ctx.Err())
	}
	return nil
}

// open puts the gate, unless it is open. Each append compares the gate's revision, so that none that was sent before it was closed can succeed any
// more. It is a key of its own because a full etcd grants nothing but the deletion of a key.
func (a *appender) open(ctx context.Context) error {
	if a.gate != 0 {
		return nil
	}
	sent := host.SinceBoot()
	answer, err := a.cluster.Client().Txn(ctx).If(a.term.Fence()).Then(clientv3.OpPut(a.keys.gate(), "")).Commit()
	switch {
	case err != nil:
		return err
	case !answer.Succeeded:
		a.term.Disproved()
		return errFenceGone
	}
	a.term.Proved(sent)
	a.gate = answer.Header.Revision
	return nil
}

// close closes the gate, and returns etcd's revision then. It needs no fence: whoever leads opens the gate again.
func (a *appender) close(ctx context.Context) (revision int64, err error) {
	once, cancel := a.call(ctx)
	defer cancel()
	answer, err := a.cluster.Client().Delete(once, a.keys.gate())
	if err != nil {
		return 0, err
	}
	a.gate = 0
	return answer.Header.Revision, nil
}

// sort finds out what a transaction means whose comparisons failed: an earlier attempt has succeeded, the term is over, or there is
// another appender. It may also be that the gate was closed, or opened once more, unheard; then the transaction is to be sent again.
func (a *appender) sort(answer *clientv3.TxnResponse, value []byte, next head) (again bool, err error) {
	batches, heads, fences := answer.Responses[0].GetResponseRange().Kvs, answer.Responses[1].GetResponseRange().Kvs, answer.Responses[2].GetResponseRange().Kvs
	fenced := len(fences) == 0 || fences[0].CreateRevision != a.term.Revision
	if fenced {
		a.term.Disproved()
	}
	switch {
	case len(batches) == 1 && bytes.Equal(batches[0].Value, value):
		a.head, a.revision = next, answer.Header.Revision
		a.seen = batches[0].ModRevision // the head was put by the same transaction
		return false, nil
	case fenced:
		return false, errFenceGone
	case len(heads) == 1 && heads[0].ModRevision != a.seen, len(heads) == 0 && a.seen != 0:
		return false, errMoved
	case len(batches) == 1:
		return false, fmt.Errorf("%w: %w", pageservice.ErrDemoted, damaged("%s is there already, and the head does not say so", a.keys.batch(next.Index)))
	}
	a.gate = 0
	return true, nil
}

// unmoved returns errMoved if the head is not where this appender left it. While nothing is appended, nothing else
// would tell: an etcd that was put back to what it was may still have the election key.
func (a *appender) unmoved(ctx context.Context) error {
	revision := int64(0)
	for _, certain := range []bool{false, true} {
		if certain { // else a member may have answered from the past
			var err error
			if revision, err = a.settled(ctx); err != nil {
				return nil
			}
		}
		answer, err := a.get(ctx, a.keys.head(), revision)
		if err != nil {
			return nil // whether this host may answer at all, its term knows
		}
		if len(answer.Kvs) == 1 && answer.Kvs[0].ModRevision == a.seen {
			return nil
		}
	}
	if answer, err := a.get(ctx, a.term.Key, revision); err == nil && len(answer.Kvs) == 0 {
		a.term.Disproved()
		return a.ended(ctx)
	}
	return errMoved
}

// answered reports whether etcd itself has answered a request so, and not merely lost it. The request may have been done nevertheless: a member that
// runs out of space says so after the write that it has just made.
func answered(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return false
	}
	var e rpctypes.EtcdError
	code := status.Code(err)
	if errors.As(err, &e) {
		code = e.Code()
	}
	switch code {
	case codes.ResourceExhausted, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange, codes.NotFound:
		return true
	}
	return false
}

// settle finds out whether a batch was appended, and keeps it from being appended later if it was not. It asks so that no member can answer from the
// past, and so that a full etcd answers, too. Otherwise it is not clear.
func (a *appender) settle(ctx context.Context, batchKey string, value []byte, next head) (done, clear bool) {
	revision, err := a.close(ctx)
	if err != nil {
		return false, false
	}
	once, cancel := a.call(ctx)
	defer cancel()
	answer, err := a.cluster.Client().Get(once, batchKey, clientv3.WithRev(revision))
	if err != nil {
		return false, false
	}
	if len(answer.Kvs) == 1 && bytes.Equal(answer.Kvs[0].Value, value) {
		a.head, a.seen, a.revision = next, answer.Kvs[0].ModRevision, revision
		return true, true
	}
	return false, true
}

// settled returns the revision of etcd after everything that was answered before: it goes through etcd's log.
func (l *Log) settled(ctx context.Context) (int64, error) {
	once, cancel := l.call(ctx)
	defer cancel()
	answer, err := l.cluster.Client().Delete(once, l.keys.prefix+"/fence") // which is never there
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}
