package cache_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// tb is a test, rapid's included.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Cleanup(func())
}

var small = kv.Layout{BlockBytes: 3 * 1024, ShardBytes: 1024}

func key(n int) kv.Key {
	var k kv.Key
	binary.BigEndian.PutUint64(k[8:], uint64(n))
	return k
}

func keys(from, n int) []kv.Key {
	var all []kv.Key
	for i := range n {
		all = append(all, key(from+i))
	}
	return all
}

// content fills b with what a shard has.
func content(b []byte, k kv.Key, index int) []byte {
	const period = 1016 // no power of two
	x := binary.BigEndian.Uint64(k[8:])*0x9e3779b97f4a7c15 + uint64(index+1)*0x2545f4914f6cdd1d
	var pattern [period]byte
	for i := 0; i < period; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(pattern[i:], x)
	}
	for n := copy(b, pattern[:]); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
	return b
}

// blocks are the shards of blocks, one block after the other.
func blocks(l kv.Layout, all ...kv.Key) []kv.Shard {
	var shards []kv.Shard
	for _, k := range all {
		for i := range l.Shards() {
			shards = append(shards, kv.Shard{Key: k, Index: i, Buf: make([]byte, l.ShardBytes)})
		}
	}
	return shards
}

func filled(shards []kv.Shard) []kv.Shard {
	for _, s := range shards {
		content(s.Buf, s.Key, s.Index)
	}
	return shards
}

func right(s kv.Shard) bool {
	return bytes.Equal(s.Buf, content(make([]byte, len(s.Buf)), s.Key, s.Index))
}

// put puts blocks into things.
func (t *things) fill(l kv.Layout, all ...kv.Key) {
	for _, s := range filled(blocks(l, all...)) {
		t.put(s.Key, s.Index, s.Buf)
	}
}

const patience = 20 * time.Second

// bounded ends with the test, or when it takes too long.
func bounded(t tb) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func within(t tb, what string, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(patience):
		t.Fatalf("waited in vain until %s", what)
	}
}

// eventually polls until is returns true.
func eventually(t tb, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func begin(t tb, do func(context.Context, []kv.Shard) (*kv.Task, error), shards []kv.Shard) *kv.Task {
	t.Helper()
	task, err := do(bounded(t), shards)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func save(t tb, s kv.Store, all ...kv.Key) {
	t.Helper()
	if err := begin(t, s.Save, filled(blocks(s.Layout(), all...))).Wait(bounded(t)); err != nil {
		t.Fatalf("save: %v", err)
	}
}

// load checks that all shards of these blocks can be loaded.
func load(t tb, s kv.Store, all ...kv.Key) {
	t.Helper()
	shards := blocks(s.Layout(), all...)
	task := begin(t, s.Load, shards)
	for i, err := range task.All() {
		if err != nil {
			t.Fatalf("load of block %s: shard %d: %v", shards[i].Key, shards[i].Index, err)
		}
		if !right(shards[i]) {
			t.Fatalf("wrong bytes in block %s, shard %d", shards[i].Key, shards[i].Index)
		}
	}
}

func flush(t tb, s kv.Store) {
	t.Helper()
	if err := s.Flush(bounded(t)); err != nil {
		t.Fatalf("flush: %v", err)
	}
}

// cached opens a cache with space for so many small blocks.
func cached(t tb, next kv.Store, slots int, o cache.Options) *cache.Store {
	t.Helper()
	o.CapacityBytes = int64(slots) * 4096
	s := mustNew(t, next, o)
	t.Cleanup(func() { s.Close() })
	return s
}

// gate holds shards up until it is opened.
type gate struct {
	reached chan struct{} // gets a token for each shard that has arrived
	open    chan struct{}
	release func() // opens it, once
}

func newGate() *gate {
	g := &gate{reached: make(chan struct{}, 10000), open: make(chan struct{})}
	g.release = sync.OnceFunc(func() { close(g.open) })
	return g
}

// holdSaves makes every save of the shelf wait at the gate.
func holdSaves(shelf *shelf) *gate {
	g := newGate()
	shelf.before(func(_ kv.Shard, save bool) error {
		if save {
			g.pass()
		}
		return nil
	})
	return g
}

func (g *gate) pass() {
	g.reached <- struct{}{}
	<-g.open
}

func indexOf(mem, what []byte) int { return bytes.Index(mem, what) }
