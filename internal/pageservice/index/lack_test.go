package index

// These tests show who must not go without memory or keys.

import (
	"fmt"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A client that gets no pages because its file is full costs nobody a key: there is
// memory.
func TestFullFileEvictsNothing(t *testing.T) {
	h := newHoard(t, 2<<20)
	large := pageservice.Space{Namespace: "large", Set: pageservice.VLLM}
	small := pageservice.Space{Namespace: "small", Set: pageservice.VLLM}
	h.initialize(large, 0)
	if got := h.store(large, 0, batchOf(0, 3000, 64), true); got != 3000 {
		t.Fatalf("only %d pages", got)
	}
	h.clock = h.clock.Add(5 * time.Minute) // nobody uses the keys any more
	if _, err := h.x.Initialize(ctx, small, 0, pageservice.RankOptions{NumPages: 10}); err != nil {
		t.Fatal(err)
	}
	h.store(small, 0, batchOf(0, 7, 64), false)
	grants, err := h.x.Reserve(ctx, small, 0, batchOf(1, 5, 64), true)
	if err != nil || grants[0].Page != pageservice.None {
		t.Fatal(grants, err)
	}
	states, err := h.x.Stat(ctx)
	if err != nil || states[0].Keys != 3000 || states[0].Counters.Evicted != 0 {
		t.Errorf("%d keys are left, %d were evicted, %v", states[0].Keys, states[0].Counters.Evicted, err)
	}
}

// Namespaces and ranks, which anybody may make, take no memory that the keys of others need.
func TestManyNamespacesLeaveMemory(t *testing.T) {
	h := newHoard(t, 2<<20)
	first := pageservice.Space{Namespace: "first", Set: pageservice.VLLM}
	h.initialize(first, 0)
	var err error
	for n := 0; err == nil; n++ {
		_, err = h.x.Initialize(ctx, pageservice.Space{Namespace: fmt.Sprint(n), Set: pageservice.VLLM}, 0, pageservice.RankOptions{NumPages: 1})
	}
	for n := 1; n < 10000; n++ {
		if _, err := h.x.Initialize(ctx, first, n, pageservice.RankOptions{NumPages: 1}); err != nil {
			break
		}
	}
	// Those whose ranks are forgotten make place for others.
	for n := range 5 {
		if err := h.x.Forget(ctx, pageservice.Space{Namespace: fmt.Sprint(n), Set: pageservice.VLLM}, 0); err != nil {
			t.Fatal(err)
		}
	}
	h.clock = h.clock.Add(5 * time.Minute)
	h.initialize(pageservice.Space{Namespace: "late", Set: pageservice.VLLM}, 0)
	if got := h.store(first, 0, batchOf(0, 1000, 64), true); got != 1000 {
		t.Errorf("only %d keys get pages", got)
	}
}

// A namespace that replaces its keys with longer ones leaves memory for others.
func TestVictimsLeaveMemory(t *testing.T) {
	h := newHoard(t, 8<<20)
	hog := pageservice.Space{Namespace: "hog", Set: pageservice.VLLM}
	other := pageservice.Space{Namespace: "other", Set: pageservice.VLLM}
	h.initialize(hog, 0)
	h.initialize(other, 0)
	for n := range 10 {
		h.store(hog, 0, batchOf(n, 4096, 64), true)
	}
	h.clock = h.clock.Add(5 * time.Minute)
	for n := range 60 {
		h.store(hog, 0, batchOf(n, 64, maxKeyBytes), false)
	}
	t.Logf("%d of %d bytes are used", h.x.used.Load(), h.o.MemoryBytes)
	if got := h.store(other, 0, batchOf(0, 1000, 64), true); got != 1000 {
		t.Errorf("only %d keys of another namespace get pages", got)
	}
	h.mustBeSmall()
}
