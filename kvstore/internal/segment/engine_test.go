package segment

import (
	"context"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// meddler is an engine that lets a test have its way with every move.
type meddler struct {
	transfer.Engine
	mu   sync.Mutex
	with func(op transfer.Op, do func()) // do makes the move; set and read under mu
}

func newMeddler() *meddler { return &meddler{Engine: posix.New(posix.Options{Streams: 4})} }

func (m *meddler) meddle(with func(op transfer.Op, do func())) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.with = with
}

func (m *meddler) Do(ctx context.Context, ops []transfer.Op) {
	m.mu.Lock()
	with := m.with
	m.mu.Unlock()
	for _, op := range ops {
		do := func() { m.Engine.Do(ctx, []transfer.Op{op}) }
		if with == nil {
			do()
			continue
		}
		with(op, do)
	}
}
