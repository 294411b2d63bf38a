package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestWhatPasses(t *testing.T) {
	for _, c := range []struct {
		err                    error
		transient, unreachable bool
	}{
		{context.DeadlineExceeded, true, true},
		{context.Canceled, false, false},
		{status.Error(codes.Unavailable, "connection refused"), true, true},
		{rpctypes.ErrTimeout, true, true},
		// Members of 3.4 that had lost the others have answered so.
		{status.Error(codes.Unknown, "context deadline exceeded"), true, true},
		{status.Error(codes.Unknown, "raft: stopped"), true, true},
		{status.Error(codes.Unknown, "something else"), false, false},
		{rpctypes.ErrPermissionDenied, false, false},
	} {
		err := fmt.Errorf("get: %w", c.err)
		if got := transient(err); got != c.transient {
			t.Errorf("%v: transient %t", err, got)
		}
		if got := errors.Is(explain(err), ErrUnreachable); got != c.unreachable {
			t.Errorf("%v: unreachable %t", err, got)
		}
	}
}
