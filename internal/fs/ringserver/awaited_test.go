package ringserver

import (
	"bytes"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// A post waits until as many completions are there as the client's sleeper lacks, or no more
// will come. Numbers that make no sense delay nothing for ever.
func TestIsAwaited(t *testing.T) {
	size := wire.RingBytes(8)
	name := "kv3fs-test-" + wire.NewUUID().String()
	m, err := shm.Create(name, size, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	shm.Remove(name)
	layout, _ := wire.LayoutOf(size)
	for _, c := range []struct {
		name                string
		awaited, tail, head int32
		inflight            int
		want                bool
	}{
		{"nothing said, as by upstream", 0, 0, 1, 7, true},
		{"any", 1, 0, 1, 7, true},
		{"too few", 4, 0, 3, 5, false},
		{"enough", 4, 0, 4, 4, true},
		{"more than enough", 4, 0, 6, 2, true},
		{"too few, around the end", 4, 7, 1, 5, false},
		{"enough, around the end", 4, 7, 2, 4, true},
		{"no more will come", 4, 0, 3, 0, true},
		{"more than the ring has", math.MaxInt32, 0, 8, 0, true},
		{"negative", math.MinInt32, 0, 1, 7, true},
		{"a tail that is none", 4, -1, 1, 5, true},
		{"a tail beyond the ring", 4, 9, 1, 5, true},
	} {
		r := &ring{layout: layout, m: mapped{Mapping: m}, cqeHead: c.head}
		r.inflight.n = c.inflight
		m.StoreInt32(layout.AwaitedOff(), c.awaited)
		m.StoreInt32(wire.OffCqeTail, c.tail)
		if got := r.isAwaited(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Whatever a client says that it awaits, its sleeper is woken when all is complete.
func TestAllCompleteIsPosted(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, bytes.Repeat([]byte("x"), 1<<20))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, awaited := range []int32{0, 1, 3, 5, math.MaxInt32, -1} {
		p := newPeer(t, s, 8, ".r0.t0")
		sem := p.m.Sem(p.layout.SemOff())
		p.m.StoreInt32(p.layout.AwaitedOff(), awaited)
		for i := range int32(5) {
			p.prep(i, wire.Args{BufID: id, FileIno: ino, Len: 128 << 10})
		}
		p.submit()
		end := time.Now().Add(20 * time.Second)
		for p.m.LoadInt32(wire.OffCqeHead) != 5 || !sem.TakeAll() {
			if time.Now().After(end) {
				t.Fatalf("%d awaited: no post, %d completions", awaited, p.m.LoadInt32(wire.OffCqeHead))
			}
			sem.Wait(time.Second)
		}
	}
}

// What an earlier waiter left in memory that is registered again delays nobody.
func TestStaleAwaitedIsCleared(t *testing.T) {
	s, _ := serve(t, Options{})
	size := wire.RingBytes(8)
	layout, _ := wire.LayoutOf(size)
	name := "kv3fs-test-" + wire.NewUUID().String()
	m, err := shm.Create(name, size, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	defer shm.Remove(name)
	m.StoreInt32(layout.AwaitedOff(), 7)
	if _, err := s.Register(me, wire.NewUUID().String()+".r0.t0", filepath.Join(shm.Dir, name)); err != nil {
		t.Fatal(err)
	}
	if got := m.LoadInt32(layout.AwaitedOff()); got != 0 {
		t.Errorf("a new ring's client awaits %d completions", got)
	}
}
