package kvstore

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmlog"
)

// NewUCMLogger returns a logger that writes to w in the form of UCM's log, from the level
// on that the environment variable UC_LOGGER_LEVEL names, or UCM_LOG_LEVEL, which counts
// more: trace, debug, info, warning, error, critical or off. Without either it is info.
// Lines that UCM documents read as UCM's do; others have their attributes at the end.
//
// Chains without a [Config.Logger] log so to the standard error output if one of the
// variables is set, and nothing if none is.
func NewUCMLogger(w io.Writer) *slog.Logger {
	level, _, unknown := ucmlog.FromEnvironment()
	logger := slog.New(ucmlog.NewHandler(w, level))
	if unknown != "" {
		logger.Warn(unknown)
	}
	return logger
}

// defaultLogger is the logger of a Config without one.
func defaultLogger() *slog.Logger {
	if _, set, _ := ucmlog.FromEnvironment(); set {
		return NewUCMLogger(os.Stderr)
	}
	return slog.New(slog.DiscardHandler)
}

// WithRequestID returns a context for [Store.Lookup] and [Store.LookupPrefix] that makes
// the log name the request. Lookups without one are numbered.
func WithRequestID(ctx context.Context, id string) context.Context {
	return kv.WithRequestID(ctx, id)
}
