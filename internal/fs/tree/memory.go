package tree

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A collection is worth its cost after this many forgotten nodes, about 20 MiB.
	forgottenWorthFreeing = 64 << 10
	freeingInterval       = 3 * time.Second
)

// forgottenNodes counts nodes forgotten since memory was last returned to the system.
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

// Run looks after the tree until ctx ends: it accounts for what clients write through
// mappings, sets damaged files aside, and returns memory to the system after the kernel forgot many nodes. The runtime
// by itself takes minutes to do so.
func (t *Tree) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	if t.usage != nil {
		beside.Go(func() { t.watchMappings(ctx) })
	}
	if t.journal != nil {
		beside.Go(func() { t.compactJournal(ctx) })
	}
	if t.aside != nil {
		beside.Go(func() { t.setAsideAll(ctx) })
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.forgotten.many:
		}
		// The kernel forgets many nodes at once: wait for the rest.
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
