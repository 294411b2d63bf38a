package cache

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// waiter is another goroutine that wants the lock at every hand-over, and gets it.
type waiter struct {
	turns  int
	inside func() // called with the lock held
}

func (w *waiter) waitFor(s *Store) {
	s.handOver = func() {
		got := make(chan struct{})
		go func() {
			defer close(got)
			s.mu.Lock()
			defer s.mu.Unlock()
			w.turns++
			w.inside()
		}()
		<-got
	}
}

func manyKeys(n int) []kv.Key {
	all := make([]kv.Key, n)
	for i := range all {
		binary.BigEndian.PutUint32(all[i][:], uint32(i))
	}
	return all
}

// Others get the lock each time after some hundred keys of a long lookup.
func TestALongLookupLetsOthersIn(t *testing.T) {
	l := kv.Layout{BlockBytes: 4, ShardBytes: 4}
	s, err := New(empty.New(l), Options{CapacityBytes: 8 * 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const turns = 100
	keys, found := manyKeys(turns*planAtOnce), make([]bool, turns*planAtOnce)
	for i := range found {
		found[i] = true // until it was looked up
	}
	var w waiter
	w.inside = func() {
		if done := w.turns * planAtOnce; found[done-1] || !found[done] {
			t.Errorf("turn %d came after other than %d keys", w.turns, done)
		}
	}
	w.waitFor(s)
	if n := s.inMemory(keys, found); n != 0 || w.turns != turns-1 {
		t.Errorf("%d found, %d turns of others", n, w.turns)
	}
}

// Others get the lock while the pins of a large batch are removed, as well as while they are
// set.
func TestALongLoadLetsOthersIn(t *testing.T) {
	const turns = 4
	l := kv.Layout{BlockBytes: 4, ShardBytes: 4}
	s, err := New(empty.New(l), Options{CapacityBytes: 2 * turns * planAtOnce * 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mem := make([]byte, turns*planAtOnce*l.BlockBytes)
	var shards []kv.Shard
	for i, key := range manyKeys(turns * planAtOnce) {
		shards = append(shards, kv.Shard{Key: key, Buf: mem[4*i:][:4]})
	}
	task, err := s.Save(t.Context(), shards)
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for pinned := -1; pinned != 0; runtime.Gosched() { // by what wrote the blocks to next
		s.mu.Lock()
		pinned = s.pinned
		s.mu.Unlock()
	}
	var pins []int // at each turn of others
	w := waiter{inside: func() { pins = append(pins, s.pinned) }}
	w.waitFor(s)
	task, err = s.Load(t.Context(), shards)
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	want := []int{1, 2, 3, 3, 2, 1}
	if len(pins) != len(want) {
		t.Fatalf("others had turns with %d pins; want %d times", pins, want)
	}
	for i := range want {
		if pins[i] != want[i]*planAtOnce {
			t.Errorf("at turn %d there are %d pins; want %d", i, pins[i], want[i]*planAtOnce)
		}
	}
}
