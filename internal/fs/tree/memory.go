package tree

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// So many forgotten nodes are worth a collection: about 20 MiB.
	forgottenWorthFreeing = 64 << 10
	freeingInterval       = 3 * time.Second
)

// forgottenNodes counts nodes forgotten since memory was last given back.
type forgottenNodes struct {
	count atomic.Int64
	many  chan struct{} // capacity 1
}

func (f *forgottenNodes) note() {
	if f.count.Add(1) == forgottenWorthFreeing {
		select {
		case f.many <- struct{}{}:
		default:
		}
	}
}

// Run gives memory back to the system after the kernel forgot many nodes, until
// ctx ends. The runtime does so by itself only over minutes. Without Run the
// stage works and is larger.
func (t *Tree) Run(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.forgotten.many:
		}
		// Forgetting comes in storms: wait for the rest of this one.
		pause.Reset(freeingInterval)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		t.forgotten.count.Store(0)
		debug.FreeOSMemory()
	}
}
