package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var errDevice = errors.New("the bus is on fire")

// moody is a device that is late, reorders, fails, and hangs, as it is told.
type moody struct {
	*device.Host
	n atomic.Int64

	mu    sync.Mutex
	mood  string        // "", "refuse", "fail", "unwaited" or "hang"
	gate  chan struct{} // ends a hang
	hangs int           // copies that may still hang
}

func newMoody() *moody {
	d := &moody{gate: make(chan struct{})}
	d.Host = device.NewHost(device.HostOptions{
		Refuse: func(c device.Copy) error {
			if ofEngine(c) {
				return nil
			}
			return d.sometimes("refuse")
		},
		WaitError: func() error { return d.sometimes("unwaited") },
		Before: func(c device.Copy) error {
			if d.n.Add(1)%4 == 0 || ofEngine(c) {
				time.Sleep(50 * time.Microsecond) // other streams overtake this one
			}
			d.mu.Lock()
			gate := d.gate
			hang := d.mood == "hang" && d.hangs > 0
			if hang {
				d.hangs--
			}
			d.mu.Unlock()
			if hang {
				<-gate
			}
			if ofEngine(c) {
				return nil
			}
			return d.sometimes("fail")
		},
	})
	return d
}

// ofEngine reports whether a copy is the engine's, which may hang, and does not fail.
func ofEngine(c device.Copy) bool { return int64(len(c.Mem)) != small.ShardBytes }

// sometimes returns an error every third time that this is the mood.
func (d *moody) sometimes(mood string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mood == mood && d.n.Add(1)%3 == 0 {
		return errDevice
	}
	return nil
}

// become changes the mood. What hangs goes on.
func (d *moody) become(mood string, hangs int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.gate)
	d.gate = make(chan struct{})
	d.mood, d.hangs = mood, hangs
}

// deviceModel is what is known of a cache in front of a store that holds everything, with an
// engine's memory on a device. Each save is of the only content that a block can have.
type deviceModel struct {
	*rapid.T
	d      *moody
	engine device.Stream // what computes and consumes
	s      *cache.Store
	next   *shelf
	known  map[kv.Key]bool
	saved  map[kv.Key]bool
	hung   bool // copies may be abandoned
	lost   []lost
}

// lost is a shard of a load whose copy was abandoned.
type lost struct {
	shard kv.Shard
	bytes []byte
}

const deviceKeys = 24

// deviceBatch is shards with margins between them, in an order of its own.
type deviceBatch struct {
	shards []kv.Shard
	buf    *device.Buffer
}

const margin = 16

// batch makes some shards of some blocks, most of them on the device. With save they are
// computed late, by the engine's stream: what copies before their event finds rubbish.
func (m *deviceModel) batch(save bool) deviceBatch {
	all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.Key { return key(rapid.IntRange(0, deviceKeys-1).Draw(t, "key")) }), 1, 6).Draw(m.T, "keys")
	whole := rapid.Bool().Draw(m.T, "whole")
	var shards []kv.Shard
	for _, k := range all {
		for i := range small.Shards() {
			shards = append(shards, kv.Shard{Key: k, Index: i})
		}
	}
	if !whole {
		shards = rapid.Permutation(shards).Draw(m.T, "order")[:rapid.IntRange(1, len(shards)).Draw(m.T, "shards")]
	}
	stride := small.ShardBytes + margin
	mem := bytes.Repeat([]byte{0xaa}, len(shards)*int(stride)+margin)
	b := deviceBatch{shards, m.d.Wrap(mem)}
	var computed device.Event
	if save && rapid.Bool().Draw(m.T, "computed late") {
		var err error
		if computed, err = m.d.NewEvent(); err != nil {
			m.Fatal(err)
		}
	}
	for i := range shards {
		at := b.buf.At(int64(i)*stride + margin)
		if rapid.IntRange(0, 3).Draw(m.T, "on the host") == 0 {
			shards[i].Buf = make([]byte, small.ShardBytes)
			if save {
				content(shards[i].Buf, shards[i].Key, shards[i].Index)
			}
			continue
		}
		shards[i].Device = &at
		if !save {
			continue
		}
		bytesOf := content(make([]byte, small.ShardBytes), shards[i].Key, shards[i].Index)
		if computed == nil {
			copy(mem[at.Offset:], bytesOf)
			continue
		}
		shards[i].Device.After = computed
		if err := m.compute(at, bytesOf); err != nil {
			m.Fatal(err)
		}
	}
	if computed != nil {
		if err := computed.Record(m.engine); err != nil {
			m.Fatal(err)
		}
	}
	return b
}

// compute queues what an engine computes, in two halves.
func (m *deviceModel) compute(at device.Place, bytesOf []byte) error {
	half := len(bytesOf) / 2
	second := at.Buffer.At(at.Offset + int64(half))
	return errors.Join(m.engine.ToDevice(at, bytesOf[:half]), m.engine.ToDevice(second, bytesOf[half:]))
}

func (m *deviceModel) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	m.Cleanup(cancel)
	return ctx
}

// failure reports whether an error may be seen: the device's own, or its being late.
func (m *deviceModel) failure(err error) bool {
	return errors.Is(err, errDevice) || m.hung && errors.Is(err, kv.ErrTimeout)
}

func (m *deviceModel) save() {
	b := m.batch(true)
	for _, s := range b.shards {
		m.saved[s.Key] = true
	}
	t, err := m.s.Save(m.ctx(), b.shards)
	if err != nil {
		m.Fatal(err)
	}
	cancelled := rapid.IntRange(0, 5).Draw(m.T, "cancel") == 0
	if cancelled {
		t.Cancel()
	}
	for i, err := range t.All() {
		if err != nil && !(cancelled && errors.Is(err, context.Canceled)) && !errors.Is(err, kv.ErrFull) && !m.failure(err) {
			m.Fatalf("saving block %s: %v", b.shards[i].Key, err)
		}
		if at := b.shards[i].Device; at != nil && !errors.Is(err, kv.ErrAbandoned) && at.After == nil {
			clear(b.buf.Bytes()[at.Offset : at.Offset+small.ShardBytes]) // it is the caller's again
		}
	}
}

func (m *deviceModel) load() {
	b := m.batch(false)
	t, err := m.s.Load(m.ctx(), b.shards)
	if err != nil {
		m.Fatal(err)
	}
	cancelled := rapid.IntRange(0, 5).Draw(m.T, "cancel") == 0
	if cancelled {
		t.Cancel()
	}
	abandoned := false
	for i, err := range t.All() {
		s := b.shards[i]
		switch {
		case err == nil:
			if at := s.Device; at != nil {
				s.Buf = b.buf.Bytes()[at.Offset : at.Offset+small.ShardBytes]
			}
			if !right(s) {
				m.Fatalf("wrong bytes in block %s, shard %d (on the device: %t)", s.Key, s.Index, s.Device != nil)
			}
			if !m.saved[s.Key] {
				m.Fatalf("block %s was loaded, and never saved", s.Key)
			}
			if s.Device != nil {
				clear(s.Buf) // nothing writes it again
			}
		case cancelled && errors.Is(err, context.Canceled), m.failure(err):
			if errors.Is(err, kv.ErrAbandoned) {
				abandoned = true
				at := s.Device.Offset
				m.lost = append(m.lost, lost{s, b.buf.Bytes()[at : at+small.ShardBytes]})
			}
		case errors.Is(err, kv.ErrMiss):
			if m.known[s.Key] {
				m.Fatalf("block %s is in next and was missed", s.Key)
			}
		default:
			m.Fatalf("loading block %s: %v", s.Key, err)
		}
	}
	if abandoned {
		return
	}
	stride := int(small.ShardBytes) + margin
	mem := b.buf.Bytes()
	for i := range len(b.shards) + 1 {
		if at := mem[i*stride : i*stride+margin]; bytes.Count(at, []byte{0xaa}) != margin {
			m.Fatalf("the margin before shard %d was written to", i)
		}
	}
}

func (m *deviceModel) flush() {
	if err := m.s.Flush(m.ctx()); err != nil && !m.failure(err) {
		m.Fatal(err)
	}
	for k := range m.saved {
		if m.next.things.has(k, small) {
			m.known[k] = true
		}
	}
}

func (m *deviceModel) remove() {
	k := key(rapid.IntRange(0, deviceKeys-1).Draw(m.T, "key"))
	if err := m.s.Delete(m.ctx(), []kv.Key{k}); err != nil {
		m.Fatal(err)
	}
	found := []bool{false}
	if err := m.s.Lookup(m.ctx(), []kv.Key{k}, found); err != nil || found[0] {
		m.Fatalf("block %s was deleted and is found, %v", k, err)
	}
	delete(m.known, k)
}

func (m *deviceModel) mood() {
	moods := []string{"", "", "refuse", "fail"}
	if m.hung {
		moods = append(moods, "unwaited", "hang", "hang")
	}
	m.d.become(rapid.SampledFrom(moods).Draw(m.T, "mood"), rapid.IntRange(1, 3).Draw(m.T, "hangs"))
}

// end checks that the device works again for what next has, and that copies that were
// abandoned and happened later were of the right bytes: their slots were not used again.
func (m *deviceModel) end(t tb) {
	m.d.become("", 0)
	if !m.hung {
		for k := range m.known {
			load(t, m.s, k)
		}
	}
	if err := m.s.Close(); err != nil && !m.hung {
		t.Fatalf("Close: %v", err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = errors.Join(m.engine.Close(), m.d.Close()) // a Host returns none
	}()
	within(t, "all streams are closed", closed)
	for _, l := range m.lost {
		untouched := bytes.Count(l.bytes, []byte{0xaa}) == len(l.bytes)
		l.shard.Buf = l.bytes
		if !untouched && !right(l.shard) {
			t.Fatalf("block %s, shard %d: wrong bytes came late", l.shard.Key, l.shard.Index)
		}
	}
}

// Whatever the device does, no wrong bytes are loaded or reach next, no slot is used while a
// copy may still use it, and what next has is loaded once the device works again.
func TestModelOnDevice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &deviceModel{
			T: t, d: newMoody(), known: map[kv.Key]bool{}, saved: map[kv.Key]bool{},
			hung: rapid.Bool().Draw(t, "hangs"),
		}
		m.next = newShelf(small, newThings())
		m.next.before(func(s kv.Shard, save bool) error {
			if save && !right(s) {
				panic(fmt.Sprintf("block %s, shard %d reached next with wrong bytes", s.Key, s.Index))
			}
			return nil
		})
		var err error
		if m.engine, err = m.d.NewStream(); err != nil {
			t.Fatal(err)
		}
		timeout := 10 * time.Second
		if m.hung {
			timeout = 20 * time.Millisecond
		}
		m.s, err = cache.New(m.next, cache.Options{
			CapacityBytes: 4096 * int64(rapid.SampledFrom([]int{4, 6, 12, 60}).Draw(t, "slots")),
			Streams:       2,
			Device:        m.d.Host,
			DeviceStreams: rapid.IntRange(1, 5).Draw(t, "streams"),
			StagingBytes:  rapid.SampledFrom([]int64{1, 64 << 20}).Draw(t, "staging"), // 1: two blocks
			Timeout:       timeout,
		})
		if err != nil {
			t.Fatal(err)
		}
		step := func(fn func()) func(*rapid.T) { return func(t *rapid.T) { m.T = t; fn() } }
		defer m.end(t)
		t.Repeat(map[string]func(*rapid.T){
			"load": step(m.load), "load again": step(m.load), "save": step(m.save), "save again": step(m.save),
			"flush": step(m.flush), "delete": step(m.remove), "mood": step(m.mood),
		})
	})
}
