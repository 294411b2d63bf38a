package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var (
	small     = kv.Layout{BlockBytes: 3 * 1024, ShardBytes: 1024}
	namespace = kv.Fingerprint{7}
)

// options returns those of a store with this many segments and slots in each.
func options(dir string, l kv.Layout, segments, slots int) Options {
	pages := (slots + indexSlots - 1) / indexSlots
	segmentBytes := pageBytes + int64(slots)*strideOf(l) + int64(pages)*pageBytes
	return Options{
		Dir: dir, Layout: l, Namespace: namespace,
		SegmentBytes:  segmentBytes,
		CapacityBytes: ownBytes + int64(segments)*onDiskBytes(segmentBytes),
	}
}

// open opens a store that is closed when the test ends.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func reopen(t testing.TB, s *Store, o Options) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, o)
}

func keyOf(n int) (key kv.Key) {
	binary.LittleEndian.PutUint64(key[4:], uint64(n)*0x9e3779b97f4a7c15)
	key[0] = 1
	return key
}

func keysOf(first, n int) []kv.Key {
	keys := make([]kv.Key, n)
	for i := range keys {
		keys[i] = keyOf(first + i)
	}
	return keys
}

// content is what a shard must have.
func content(key kv.Key, index int) workload.Pattern {
	return workload.PatternOf(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:]), uint64(index))
}

// shardsOf are whole blocks, block by block, each in one piece of memory.
func shardsOf(l kv.Layout, keys ...kv.Key) []kv.Shard {
	bufs := make([][]byte, len(keys))
	for i := range bufs {
		bufs[i] = make([]byte, l.BlockBytes)
	}
	return l.ByBlock(keys, bufs)
}

func filled(shards []kv.Shard) []kv.Shard {
	for _, s := range shards {
		content(s.Key, s.Index).Fill(s.Buf)
	}
	return shards
}

func beginSave(t testing.TB, s *Store, shards []kv.Shard) *kv.Task {
	t.Helper()
	task, err := s.Save(context.Background(), filled(shards))
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func save(t testing.TB, s *Store, keys ...kv.Key) {
	t.Helper()
	if err := beginSave(t, s, shardsOf(s.Layout(), keys...)).Wait(context.Background()); err != nil {
		t.Fatalf("saving: %v", err)
	}
}

// load returns which blocks are there. What is loaded must be right, and the rest must
// be misses.
func load(t testing.TB, s *Store, keys ...kv.Key) []bool {
	t.Helper()
	shards := shardsOf(s.Layout(), keys...)
	task, err := s.Load(context.Background(), shards)
	if err != nil {
		t.Fatal(err)
	}
	there := make([]bool, len(keys))
	for i := range there {
		there[i] = true
	}
	for i, err := range task.All() {
		switch {
		case err == nil:
			if n, at := content(shards[i].Key, shards[i].Index).Check(shards[i].Buf); n > 0 {
				t.Fatalf("shard %d of block %s: %d wrong bytes, the first at %d", shards[i].Index, shards[i].Key, n, at)
			}
		case errors.Is(err, kv.ErrMiss):
			there[i/s.Layout().Shards()] = false
		default:
			t.Fatalf("shard %d of block %s: %v", shards[i].Index, shards[i].Key, err)
		}
	}
	return there
}

// loads checks that all are there.
func loads(t testing.TB, s *Store, keys ...kv.Key) {
	t.Helper()
	for i, there := range load(t, s, keys...) {
		if !there {
			t.Fatalf("block %s (%d of %d) is gone", keys[i], i, len(keys))
		}
	}
}

func found(t testing.TB, s *Store, keys ...kv.Key) []bool {
	t.Helper()
	found := make([]bool, len(keys))
	if err := s.Lookup(context.Background(), keys, found); err != nil {
		t.Fatal(err)
	}
	return found
}

// until waits until other goroutines have made holds true.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for patience := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// onDisk returns how much the files of a directory take on the disk.
func onDisk(t testing.TB, dir string) (sizeBytes int64) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		sizeBytes += allocated(t, filepath.Join(dir, e.Name()))
	}
	return sizeBytes
}

// written is a block that a closed store's directory has.
type written struct {
	file string
	slot int
	at   int64 // in the file
	head blockhead.Head
}

// right reports whether it is the block that its head names.
func (w *written) right(t testing.TB) bool {
	t.Helper()
	raw, err := os.ReadFile(w.file)
	if err != nil {
		t.Fatal(err)
	}
	raw = raw[w.at:]
	for i, sum := range w.head.Sums {
		size := w.head.BlockBytes / int64(len(w.head.Sums))
		shard := raw[int64(i)*size : int64(i+1)*size]
		if n, _ := content(w.head.Key, i).Check(shard); n > 0 || blockhead.Sum(shard) != sum {
			return false
		}
	}
	return true
}

// blocksIn returns the blocks of a directory, as their heads name them.
func blocksIn(t testing.TB, dir string) (geometry, []written) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, superName))
	if err != nil {
		t.Fatal(err)
	}
	var super record
	if err := super.decode(superMagic, raw); err != nil {
		t.Fatal(err)
	}
	g, err := newGeometry(super.layout, super.segmentBytes)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := numbersIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []written
	for _, n := range numbers {
		file := filepath.Join(dir, segmentName(n))
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var h record
		if h.decode(headerMagic, raw) != nil {
			continue
		}
		for i := range g.slots {
			w := written{file: file, slot: i, at: g.slotAt(i)}
			if w.head.Decode(raw[g.headAt(i):]) == nil && w.head.Sequence == h.generation {
				all = append(all, w)
			}
		}
	}
	return g, all
}
