package storesuite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// blocksHeld is how many blocks a store must be able to hold.
const blocksHeld = 256

// world is a store with helpers for the tests.
type world struct {
	*testing.T
	subject Subject
	dir     string
	o       Options
	store   Store

	mu     sync.Mutex
	memory []guarded
}

func newWorld(t *testing.T, s Subject) *world {
	w := &world{T: t, subject: s, o: Options{Namespace: kv.Fingerprint{1, 2, 3}, Blocks: blocksHeld}}
	w.o.Layout = w.layout(3, 4096)
	w.dir = w.newDir()
	w.open()
	return w
}

// layout returns a layout of so many shards. Their size is rounded up to AlignBytes.
func (w *world) layout(shards int, shardBytes int64) kv.Layout {
	shardBytes = (shardBytes + w.subject.AlignBytes - 1) / w.subject.AlignBytes * w.subject.AlignBytes
	return kv.Layout{BlockBytes: int64(shards) * shardBytes, ShardBytes: shardBytes}
}

// anew continues with an empty store of another layout.
func (w *world) anew(l kv.Layout) {
	w.Helper()
	w.close()
	w.o.Layout, w.dir = l, w.newDir()
	w.open()
}

func (w *world) newDir() string {
	if w.subject.Dir != nil {
		return w.subject.Dir(w)
	}
	return w.TempDir()
}

// open opens what is in the directory.
func (w *world) open() {
	w.Helper()
	store := w.subject.open(w, w.dir, w.o)
	w.store = store
	w.Cleanup(func() { _ = w.closed(store) })
}

func (w *world) close() {
	w.Helper()
	if err := w.closed(w.store); err != nil {
		w.Fatalf("Close: %v", err)
	}
}

func (w *world) closed(store Store) (err error) {
	w.Helper()
	w.within("Close", func() { err = store.Close() })
	return err
}

func (w *world) reopen() {
	w.Helper()
	w.close()
	w.open()
}

// end closes the store, after which no memory is in use, and checks the margins.
func (w *world) end() {
	w.Helper()
	if err := w.closed(w.store); err != nil {
		w.Errorf("Close: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.memory {
		if !m.intact() {
			w.Fatal("the store wrote outside a buffer")
		}
	}
}

// within makes a call that must not hang.
func (w *world) within(what string, call func()) {
	w.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	w.until(what+" returns", done)
}

// until waits for an event and ends the test if it does not occur in time.
func (w *world) until(what string, event <-chan struct{}) {
	w.Helper()
	patience := time.NewTimer(w.subject.Patience)
	defer patience.Stop()
	select {
	case <-event:
	case <-patience.C:
		w.Fatalf("waited %v, and not yet: %s", w.subject.Patience, what)
	}
}

// buffer returns guarded memory.
func (w *world) buffer(sizeBytes int64) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := newGuarded(sizeBytes, len(w.memory))
	w.memory = append(w.memory, m)
	return m.buf
}

// shards returns the shards of whole blocks, block by block.
func (w *world) shards(keys ...kv.Key) []kv.Shard {
	var all []kv.Shard
	for _, k := range keys {
		for i := range w.o.Layout.Shards() {
			all = append(all, w.shard(k, i))
		}
	}
	return all
}

func (w *world) shard(k kv.Key, index int) kv.Shard {
	return kv.Shard{Key: k, Index: index, Buf: w.buffer(w.o.Layout.ShardBytes)}
}

// byLayer sorts shards into the order in which an engine wants them.
func byLayer(shards []kv.Shard) []kv.Shard {
	slices.SortStableFunc(shards, func(a, b kv.Shard) int { return a.Index - b.Index })
	return shards
}

// beginLoad begins a load that must be accepted.
func (w *world) beginLoad(shards []kv.Shard) Task {
	w.Helper()
	mangle(shards)
	return w.begin("Load", w.store.Load, w.Context(), shards)
}

// beginSave fills the shards and begins a save that must be accepted.
func (w *world) beginSave(shards []kv.Shard) Task {
	w.Helper()
	return w.begin("Save", w.store.Save, w.Context(), fill(shards))
}

type move func(context.Context, []kv.Shard) (Task, error)

func (w *world) begin(what string, do move, ctx context.Context, shards []kv.Shard) (t Task) {
	w.Helper()
	var err error
	w.within(what, func() { t, err = do(ctx, shards) })
	if err != nil {
		w.Fatalf("%s of %d shards: %v", what, len(shards), err)
	}
	return t
}

// wait waits for a batch.
func (w *world) wait(t Task) {
	w.Helper()
	w.until("a batch is done", t.Done())
}

// stored waits for a save that must succeed.
func (w *world) stored(t Task) {
	w.Helper()
	w.wait(t)
	if err := t.Err(); err != nil {
		w.Fatalf("saving: %v", err)
	}
}

// save saves whole blocks in one batch.
func (w *world) save(keys ...kv.Key) {
	w.Helper()
	w.stored(w.beginSave(w.shards(keys...)))
}

// results waits for a batch and returns the errors of its shards.
func (w *world) results(t Task) []error {
	w.Helper()
	w.wait(t)
	all := make([]error, t.Len())
	for i := range all {
		err, settled := t.Result(i)
		if !settled {
			w.Fatalf("the batch is done, and shard %d of it is not settled", i)
		}
		all[i] = err
	}
	return all
}

// right checks the content of a loaded shard.
func (w *world) right(s kv.Shard) bool {
	w.Helper()
	wrongBytes, first := content(s.Key, s.Index).check(s.Buf)
	if wrongBytes > 0 {
		w.Errorf("shard %d of block %s: %d wrong bytes of %d, the first at %d", s.Index, s.Key, wrongBytes, len(s.Buf), first)
	}
	return wrongBytes == 0
}

// holds checks that blocks exist and have their content. For a store that discards
// blocks it checks that they do not exist.
func (w *world) holds(keys ...kv.Key) {
	w.Helper()
	if w.subject.Discards {
		w.lacks(keys...)
		return
	}
	w.found(true, keys...)
	w.loads(keys...)
}

// loads checks that blocks can be loaded and have their content.
func (w *world) loads(keys ...kv.Key) {
	w.Helper()
	shards := w.shards(keys...)
	for i, err := range w.results(w.beginLoad(shards)) {
		if err != nil {
			w.Fatalf("loading shard %d of block %s: %v", shards[i].Index, shards[i].Key, err)
		}
		if !w.right(shards[i]) {
			w.FailNow()
		}
	}
}

// lacks checks that blocks do not exist.
func (w *world) lacks(keys ...kv.Key) {
	w.Helper()
	w.found(false, keys...)
	shards := w.shards(keys...)
	for i, err := range w.results(w.beginLoad(shards)) {
		if !errors.Is(err, kv.ErrMiss) {
			w.Fatalf("loading shard %d of block %s, which does not exist: %v", shards[i].Index, shards[i].Key, err)
		}
	}
}

// found checks the result of Lookup.
func (w *world) found(want bool, keys ...kv.Key) {
	w.Helper()
	for i, there := range w.lookup(keys...) {
		if there != want {
			w.Fatalf("Lookup of block %s (%d of %d): %t", keys[i], i, len(keys), there)
		}
	}
}

func (w *world) lookup(keys ...kv.Key) []bool {
	w.Helper()
	found := make([]bool, len(keys))
	for i := range found {
		found[i] = i%2 == 0 // the previous content does not matter
	}
	var err error
	w.within("Lookup", func() { err = w.store.Lookup(w.Context(), keys, found) })
	if err != nil {
		w.Fatalf("Lookup of %d keys: %v", len(keys), err)
	}
	return found
}

// prefix checks the result of LookupPrefix.
func (w *world) prefix(want int, keys ...kv.Key) {
	w.Helper()
	if w.subject.Discards {
		want = 0
	}
	var n int
	var err error
	w.within("LookupPrefix", func() { n, err = w.store.LookupPrefix(w.Context(), keys) })
	if err != nil || n != want {
		w.Fatalf("LookupPrefix of %d keys: %d, %v; want %d", len(keys), n, err, want)
	}
}

// flush makes a Flush that must succeed.
func (w *world) flush() {
	w.Helper()
	var err error
	w.within("Flush", func() { err = w.store.Flush(w.Context()) })
	if err != nil {
		w.Fatalf("Flush: %v", err)
	}
}
