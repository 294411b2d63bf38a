package meter

import (
	"context"
	"errors"
	"strconv"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmlog"
)

// taskOf numbers a batch for the log.
func (s *Store) taskOf(d *direction, shards []kv.Shard) *ucmlog.Task {
	return &ucmlog.Task{
		Store: s.name, ID: s.tasks.Add(1), Operation: d.operation,
		Subtasks: len(shards), Bytes: int64(len(shards)) * s.Layout().ShardBytes,
	}
}

// count notes for the log how a shard has ended.
func (b *batch) count(err error) {
	switch {
	case errors.Is(err, kv.ErrMiss):
		b.missed.Add(1)
	case err != nil:
		b.failed.Add(1)
	}
}

// logsRequests reports whether lookups are logged: those that programs make.
func (s *Store) logsRequests() bool { return s.place == Front && ucmlog.Enabled(s.logger) }

// logRequest logs a lookup of so many blocks, of which these exist. Where they are is as
// of now: a block that was evicted since it was found counts as outside.
func (s *Store) logRequest(ctx context.Context, blocks int, hits []kv.Key) {
	inMemory := 0
	if m, ok := s.Store.(kv.Memory); ok {
		inMemory = m.InMemory(hits)
	}
	id := kv.RequestID(ctx)
	if id == "" {
		id = strconv.FormatInt(s.requests.Add(1), 10)
	}
	ucmlog.Found(s.logger, ucmlog.Request{ID: id, Blocks: blocks, Memory: inMemory, Outside: len(hits) - inMemory})
}
