package cluster

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// codeOf returns the code of an error of etcd or of the connection to it.
func codeOf(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) && s.GRPCStatus().Code() == codes.Unknown && passing[s.GRPCStatus().Message()] {
		return codes.Unavailable
	}
	return status.Code(err)
}

// passing are the errors of a member in trouble that etcd 3.4 passes on without a code of its own.
var passing = map[string]bool{
	context.DeadlineExceeded.Error(): true,
	context.Canceled.Error():         true,
	"raft: stopped":                  true,
	"raft proposal dropped":          true,
}

// transient reports whether a request that failed so may succeed when it is sent again.
func transient(err error) bool {
	switch {
	case errors.Is(err, context.Canceled):
		return false
	case errors.Is(err, context.DeadlineExceeded):
		return true
	}
	switch codeOf(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Aborted:
		return true
	}
	return false // also what does not come from etcd
}

// explain adds to an error of etcd what can be done about it.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case isNoSpace(err):
		return fmt.Errorf("%w: %w: delete or compact, etcdctl defrag each member, then etcdctl alarm disarm; or raise --quota-backend-bytes", ErrNoSpace, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%w: grant the user the whole prefix: etcdctl role grant-permission ROLE readwrite --prefix PREFIX/", err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w: this etcd wants a user and a password", err)
	case codeOf(err) == codes.Unavailable, isTimeout(err):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.DeadlineExceeded
}

func isNoSpace(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }
