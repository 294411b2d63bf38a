package pages

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// Two models on one service have equal keys, and do not see each other's blocks.
func TestModelsShareNoKeys(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	one := mustOpen(t, h.options(t.TempDir(), 20))
	o := h.options(t.TempDir(), 20)
	o.Namespace = kv.Fingerprint{8}
	two := mustOpen(t, o)
	o = h.options(t.TempDir(), 20)
	o.Rank = 1
	three := mustOpen(t, o)
	stored(t, one, keysOf(0, 5)...)
	for _, s := range []*Store{two, three} {
		for _, found := range lookup(t, s, keysOf(0, 5)...) {
			if found {
				t.Error("found")
			}
		}
	}
	stored(t, two, keysOf(3, 5)...)
	there(t, one, keysOf(0, 5)...)
	there(t, two, keysOf(3, 5)...)
}

// Two stores on one file see each other's blocks.
func TestStoresShareAFile(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 400)
	one, two := mustOpen(t, o), mustOpen(t, o)
	stored(t, one, keysOf(0, 10)...)
	there(t, two, keysOf(0, 10)...)
	var together sync.WaitGroup
	for _, s := range []*Store{one, two} {
		together.Go(func() {
			for round := range 10 {
				stored(t, s, keysOf(20+round*10, 10)...)
			}
		})
	}
	together.Wait()
	there(t, one, keysOf(20, 100)...)
	there(t, two, keysOf(20, 100)...)
}

// The block that was used least recently is evicted, and no wrong block is ever returned.
func TestEviction(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 10))
	for n := range 60 {
		stored(t, s, key(n))
	}
	there(t, s, keysOf(50, 10)...)
	for _, err := range load(t, s, keysOf(0, 50)...) {
		if !errors.Is(err, kv.ErrMiss) {
			t.Fatal(err)
		}
	}
	// As far as the service knows, all ten are being read.
	for _, err := range save(t, s, key(99)) {
		if !errors.Is(err, kv.ErrFull) {
			t.Fatal(err)
		}
	}
	there(t, s, keysOf(50, 10)...)
}

// The service gives pages to other blocks while they are read or written. What is loaded
// is still right, because the records decide, not the leases.
func TestPagesAreTakenAway(t *testing.T) {
	const short = time.Millisecond
	// Reserved long enough for a slow machine to write anything at all.
	h := newHost(t, pageservice.Options{Lease: short, Hold: short, Reserve: 250 * time.Millisecond, Quarantine: short})
	o := h.options(t.TempDir(), 24)
	one, two := mustOpen(t, o), mustOpen(t, o)
	var together sync.WaitGroup
	var loaded, missed atomic.Int64
	for g := range 6 {
		s := one
		if g%2 == 1 {
			s = two
		}
		rng := rand.New(rand.NewPCG(3, uint64(g)))
		together.Go(func() {
			for range 60 {
				some := keysOf(rng.IntN(40), 1+rng.IntN(8))
				if g < 3 {
					for _, err := range save(t, s, some...) {
						if err != nil && !errors.Is(err, kv.ErrFull) && !errors.Is(err, kv.ErrTimeout) {
							t.Error(err)
						}
					}
					continue
				}
				for _, err := range load(t, s, some...) { // which checks the bytes
					switch {
					case err == nil:
						loaded.Add(1)
					case errors.Is(err, kv.ErrMiss):
						missed.Add(1)
					default:
						t.Error(err)
					}
				}
			}
		})
	}
	together.Wait()
	if loaded.Load() == 0 {
		t.Error("nothing was ever loaded")
	}
	t.Logf("%d shards loaded, %d missed, %d blocks found damaged", loaded.Load(), missed.Load(),
		one.Stats().CorruptBlocks+two.Stats().CorruptBlocks)
}

// After the end of the lease a load is a miss if nothing else tells what was read. With a
// checksum it is not.
func TestAfterTheLease(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 20)
	stored(t, mustOpen(t, o), key(0))
	o.Lease = 1
	checked := mustOpen(t, o)
	o.Checksums = kv.ChecksumsOff
	unchecked := mustOpen(t, o)
	there(t, checked, key(0))
	for _, err := range load(t, unchecked, key(0)) {
		if !errors.Is(err, kv.ErrMiss) || errors.Is(err, kv.ErrCorrupt) {
			t.Error(err)
		}
	}
	o.Lease = 0
	there(t, mustOpen(t, o), key(0))
}

// The first shard that comes after the reservation drops its block: the page may belong
// to another block by then. The next batch begins it again.
func TestTooSlow(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 20))
	shards := shardsOf(key(0))
	task, err := s.Save(t.Context(), shards[:1])
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.unfinished[key(0)].writeBy = time.Now().Add(-1)
	s.mu.Unlock()
	for _, err := range save(t, s, key(0)) {
		if !errors.Is(err, kv.ErrTimeout) {
			t.Error(err)
		}
	}
	if got := s.Stats().DroppedBlocks; got != 1 {
		t.Errorf("%d blocks dropped", got)
	}
	stored(t, s, key(0))
	there(t, s, key(0))

	// The service does not report a confirmation that comes too late.
	late := s.newPage(3, time.Now().Add(-time.Hour))
	answers := make(chan error, 1)
	s.confirmer.confirm([]confirmation{{key(1), late, time.Now().Add(time.Minute), func(err error) { answers <- err }}})
	if err := <-answers; !errors.Is(err, kv.ErrTimeout) {
		t.Error(err)
	}
}

// held is an engine whose reads wait: of shards, or of records, or of both.
type held struct {
	transfer.Engine
	begun   chan struct{} // closed by the first batch: the pages are located
	until   chan struct{}
	held    func(bytes int) bool
	waiting sync.WaitGroup
}

func (h *held) Do(ctx context.Context, ops []transfer.Op) {
	defer close(h.begun)
	for _, op := range ops {
		if op.Write || !h.held(len(op.Buf)) {
			h.Engine.Do(ctx, []transfer.Op{op})
			continue
		}
		h.waiting.Go(func() {
			<-h.until
			h.Engine.Do(ctx, []transfer.Op{op})
		})
	}
}

// A page is given to another block after it was located and before it is read. The load
// is a miss, whether the data, the record or both are the other block's.
func TestAPageIsRewrittenBeforeItIsRead(t *testing.T) {
	const short = time.Millisecond
	small := kv.Layout{BlockBytes: 1024, ShardBytes: 512} // so that a read's length tells shards from records
	for name, which := range map[string]func(int) bool{
		"data":   func(n int) bool { return n == 512 },
		"record": func(n int) bool { return n != 512 },
		"both":   func(int) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, pageservice.Options{Lease: short, Hold: short, Quarantine: short})
			o := h.options(t.TempDir(), 1)
			o.Layout, o.CapacityBytes = small, strideOf(small)
			writer := mustOpen(t, o)
			e := &held{Engine: posix.New(posix.Options{}), begun: make(chan struct{}), until: make(chan struct{}), held: which}
			o.Engine = e
			reader := mustOpen(t, o)
			shards := func(k kv.Key, fill byte) []kv.Shard {
				return small.ByBlock([]kv.Key{k}, [][]byte{bytes.Repeat([]byte{fill}, 1024)})
			}
			task, err := writer.Save(t.Context(), shards(key(0), 1))
			if err := errors.Join(results(t, task, err)...); err != nil {
				t.Fatal(err)
			}
			reading := shards(key(0), 9)
			load, err := reader.Load(t.Context(), reading)
			if err != nil {
				t.Fatal(err)
			}
			<-e.begun
			for full := true; full && t.Context().Err() == nil; { // until the service thinks that the page is no longer read
				task, err := writer.Save(t.Context(), shards(key(1), 2))
				err = errors.Join(results(t, task, err)...)
				if full = errors.Is(err, kv.ErrFull); err != nil && !full {
					t.Fatal(err)
				}
			}
			close(e.until)
			for i, err := range results(t, load, nil) {
				if err == nil && bytes.Count(reading[i].Buf, []byte{1}) != 512 {
					t.Errorf("shard %d: %x was returned", i, reading[i].Buf[:4])
				}
				if err == nil || !errors.Is(err, kv.ErrMiss) {
					t.Errorf("shard %d: %v", i, err)
				}
			}
			e.waiting.Wait()
			if !lookup(t, writer, key(1))[0] {
				t.Error("the other block was deleted")
			}
		})
	}
}

// Saving a block that is present does not protect its page from eviction.
func TestSavingAgainHoldsNoPage(t *testing.T) {
	const short = time.Millisecond
	h := newHost(t, pageservice.Options{Lease: short, Hold: short, Quarantine: short, Reserve: time.Hour})
	s := mustOpen(t, h.options(t.TempDir(), 4))
	stored(t, s, keysOf(0, 4)...)
	stored(t, s, keysOf(0, 4)...)
	patience, done := context.WithTimeout(t.Context(), 20*time.Second)
	defer done()
	for err := kv.ErrFull; errors.Is(err, kv.ErrFull) && patience.Err() == nil; { // until the leases have ended
		err = errors.Join(save(t, s, keysOf(10, 4)...)...)
	}
	there(t, s, keysOf(10, 4)...)
}
