package segment

import (
	"context"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// interceptor is an engine that lets a test change, delay or fail every move.
type interceptor struct {
	transfer.Engine
	mu   sync.Mutex
	with func(op transfer.Op, do func()) // do makes the move; set and read under mu
}

func newInterceptor() *interceptor { return &interceptor{Engine: posix.New(posix.Options{Streams: 4})} }

func (m *interceptor) intercept(with func(op transfer.Op, do func())) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.with = with
}

func (m *interceptor) Do(ctx context.Context, ops []transfer.Op) {
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
