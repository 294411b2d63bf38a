package cache_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// placed has a block's shards in memory of a device, filled.
func placed(d *device.Host, l kv.Layout, k kv.Key) (shards []kv.Shard, mem []byte) {
	b := d.Wrap(make([]byte, l.BlockBytes))
	for i := range l.Shards() {
		at := b.At(int64(i) * l.ShardBytes)
		content(b.Bytes()[at.Offset:at.Offset+l.ShardBytes], k, i)
		shards = append(shards, kv.Shard{Key: k, Index: i, Device: &at})
	}
	return shards, b.Bytes()
}

// A copy from the device that hangs is abandoned. Its slot is used for nothing else until
// the copy has ended, also when the cache needs space.
func TestSlotsOfAbandonedCopiesAreNotReused(t *testing.T) {
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	var holding atomic.Bool
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if !c.ToDevice && holding.CompareAndSwap(true, false) {
			<-gate
		}
		return nil
	}})
	s := mustNew(t, empty.New(small), cache.Options{CapacityBytes: 4 * 4096, Device: d, Timeout: 300 * time.Millisecond})
	defer s.Close()
	holding.Store(true)
	shards, mem := placed(d, small, key(1))
	task := begin(t, s.Save, shards)
	if err := task.Wait(bounded(t)); !errors.Is(err, kv.ErrAbandoned) {
		t.Fatalf("saving: %v", err)
	}
	for i := range mem {
		mem[i] = 0xee // what the late copy will write
	}
	save(t, s, keys(10, 3)...) // fills the other slots
	load(t, s, keys(10, 3)...)
	release()
	eventually(t, "the slot is free again", func() bool {
		save(t, s, keys(20, 4)...)
		found := make([]bool, 4)
		return s.Lookup(bounded(t), keys(20, 4), found) == nil && found[0] && found[1] && found[2] && found[3]
	})
	load(t, s, keys(20, 4)...)
}

// A copy that fails fails its shard alone, and the next one works.
func TestCopiesThatFail(t *testing.T) {
	broken := errors.New("broken")
	var fail atomic.Bool
	for name, o := range map[string]device.HostOptions{
		"refused":  {Refuse: func(device.Copy) error { return when(&fail, broken) }},
		"failed":   {Before: func(device.Copy) error { return when(&fail, broken) }},
		"unwaited": {WaitError: func() error { return when(&fail, broken) }},
	} {
		t.Run(name, func(t *testing.T) {
			d := device.NewHost(o)
			s := cached(t, empty.New(small), 8, cache.Options{Device: d})
			shards, _ := placed(d, small, key(1))
			if err := begin(t, s.Save, shards).Wait(bounded(t)); err != nil {
				t.Fatal(err)
			}
			fail.Store(true)
			into, mem := placed(d, small, key(1))
			clear(mem)
			task := begin(t, s.Load, into)
			failed := 0
			for _, err := range task.All() {
				if errors.Is(err, broken) && !errors.Is(err, kv.ErrAbandoned) {
					failed++
				} else if err != nil {
					t.Error(err)
				}
			}
			if failed != 1 {
				t.Errorf("%d shards have failed, want 1", failed)
			}
			if err := begin(t, s.Load, into).Wait(bounded(t)); err != nil {
				t.Error(err)
			}
			for _, want := range into {
				at := want.Device.Offset
				if got := mem[at : at+small.ShardBytes]; !bytes.Equal(got, content(make([]byte, small.ShardBytes), key(1), want.Index)) {
					t.Errorf("shard %d is wrong", want.Index)
				}
			}
		})
	}
}

func when(flag *atomic.Bool, err error) error {
	if flag.CompareAndSwap(true, false) {
		return err
	}
	return nil
}

// A save waits for the event that says that its bytes are computed.
func TestSavesWaitForTheirEvent(t *testing.T) {
	computed := make(chan struct{})
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if len(c.Mem) == 1 { // the engine's work
			<-computed
		}
		return nil
	}})
	s := cached(t, empty.New(small), 8, cache.Options{Device: d})
	engine, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	event, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	shards, mem := placed(d, small, key(1))
	first := mem[0]
	mem[0] = ^first
	if err := errors.Join(engine.ToDevice(*shards[0].Device, []byte{first}), event.Record(engine)); err != nil {
		t.Fatal(err)
	}
	for i := range shards {
		shards[i].Device.After = event
	}
	task := begin(t, s.Save, shards)
	if _, settled := task.Result(0); settled {
		t.Error("saved before it was computed")
	}
	close(computed)
	if err := task.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	load(t, s, key(1))
}

// Memory of another device is the caller's mistake, and so is memory of any in a cache
// without one.
func TestMemoryOfAnotherDevice(t *testing.T) {
	shards, _ := placed(device.NewHost(device.HostOptions{}), small, key(1))
	for name, d := range map[string]device.Device{"another": device.NewHost(device.HostOptions{}), "none": nil} {
		s := cached(t, empty.New(small), 8, cache.Options{Device: d})
		var refused *kv.BatchError
		if _, err := s.Save(t.Context(), shards); !errors.As(err, &refused) || refused.Shard != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A copy to the device that hangs is abandoned, and its block stays in its slot until the copy
// has ended: what comes late is still of that block.
func TestSlotsOfAbandonedLoadsAreNotReused(t *testing.T) {
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	var holding atomic.Bool
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if c.ToDevice && holding.CompareAndSwap(true, false) {
			<-gate
		}
		return nil
	}})
	s := mustNew(t, empty.New(small), cache.Options{CapacityBytes: 4 * 4096, Device: d, Timeout: 300 * time.Millisecond})
	save(t, s, key(1))
	shards, mem := placed(d, small, key(1))
	clear(mem)
	holding.Store(true)
	task := begin(t, s.Load, shards)
	if err := task.Wait(bounded(t)); !errors.Is(err, kv.ErrAbandoned) {
		t.Fatalf("loading: %v", err)
	}
	for n := range 4 { // the other slots, again and again
		save(t, s, keys(10+3*n, 3)...)
		flush(t, s)
	}
	release()
	if err := s.Close(); err != nil && !errors.Is(err, workerpool.ErrOverdue) {
		t.Error(err)
	}
	if err := d.Close(); err != nil { // waits for the late copy
		t.Error(err)
	}
	for _, at := range shards {
		from := at.Device.Offset
		if got := mem[from : from+small.ShardBytes]; !bytes.Equal(got, content(make([]byte, small.ShardBytes), key(1), at.Index)) {
			t.Errorf("shard %d: other bytes came late", at.Index)
		}
	}
}

// While the device may still write a shard of a block that was abandoned, the shard is not saved
// again into the same slot: what comes late would overwrite it. Checksums would notice, so there
// are none.
func TestLateCopiesOverwriteNoOtherSave(t *testing.T) {
	const timeout = time.Second
	begun, gates := make(chan int, 8), []chan struct{}{make(chan struct{}), make(chan struct{})}
	var holding atomic.Bool
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if n := int(c.Place.Offset / small.ShardBytes); !c.ToDevice && n < len(gates) && holding.Load() {
			begun <- n
			<-gates[n]
		}
		return nil
	}})
	s := mustNew(t, empty.New(small), cache.Options{CapacityBytes: 4 * 4096, Device: d, DeviceStreams: 8, Timeout: timeout, Checksums: kv.ChecksumsOff})
	shards, mem := placed(d, small, key(1))
	holding.Store(true)
	first := begin(t, s.Save, shards[:1])
	<-begun
	time.Sleep(timeout / 2) // so that the second copy is under way when the first is given up
	second := begin(t, s.Save, shards[1:2])
	<-begun
	if err := first.Wait(bounded(t)); !errors.Is(err, kv.ErrAbandoned) {
		t.Fatalf("saving: %v", err)
	}
	for i := range small.ShardBytes {
		mem[i] = 0xee // what the late copy will write
	}
	again := filled(blocks(small, key(1)))
	for _, i := range []int{0, 2} { // the second may be late, too: then the block is another
		_ = begin(t, s.Save, again[i:i+1]).Wait(bounded(t))
	}
	close(gates[1])
	_ = second.Wait(bounded(t))
	close(gates[0])
	for range 50 { // while the late copy ends
		into := blocks(small, key(1))
		if err := begin(t, s.Load, into).Wait(bounded(t)); err == nil {
			for _, shard := range into {
				if !right(shard) {
					t.Fatalf("shard %d has what came late", shard.Index)
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
	_ = s.Close() // it may know that a copy was abandoned
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Staging memory into which the device may still write is not used for another block.
func TestStagingOfAbandonedCopiesIsNotReused(t *testing.T) {
	gate := make(chan struct{})
	var holding atomic.Bool
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if !c.ToDevice && holding.Load() {
			<-gate
		}
		return nil
	}})
	shelf := newShelf(small, newThings())
	s := mustNew(t, shelf, cache.Options{CapacityBytes: 4 * 4096, Device: d, DeviceStreams: 8, StagingBytes: 1, Timeout: 300 * time.Millisecond})
	holding.Store(true)
	for n := range 5 { // each of four takes a slot, and the fifth staging memory
		shards, mem := placed(d, small, key(n))
		if err := begin(t, s.Save, shards[:1]).Wait(bounded(t)); !errors.Is(err, kv.ErrAbandoned) {
			t.Fatalf("saving block %d: %v", n, err)
		}
		for i := range mem {
			mem[i] = 0xee // what the late copy will write
		}
	}
	holding.Store(false)
	shards, _ := placed(d, small, key(10))
	if err := begin(t, s.Save, shards).Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	g := holdSaves(shelf)
	shards, _ = placed(d, small, key(11))
	task := begin(t, s.Save, shards)
	<-g.reached // its bytes are in staging memory
	close(gate)
	time.Sleep(20 * time.Millisecond) // the late copies happen
	g.release()
	if err := task.Wait(bounded(t)); err != nil {
		t.Error(err)
	}
	shelf.before(nil)
	load(t, shelf, keys(10, 2)...)
	_ = s.Close() // it may know that copies were abandoned
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A shard that is compared with what another save has brought is copied to staging memory. While
// the device may still write there, that memory is nobody else's: where there is no other, saves
// are refused, until the copies have ended.
func TestStagingOfAbandonedComparisonsIsNotReused(t *testing.T) {
	gate := make(chan struct{})
	var holding atomic.Bool
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if !c.ToDevice && holding.Load() {
			<-gate
		}
		return nil
	}})
	s := mustNew(t, empty.New(small), cache.Options{CapacityBytes: 8 * 4096, Device: d, DeviceStreams: 8, StagingBytes: 1, Timeout: time.Second})
	twice := func(k kv.Key, hold bool) error { // the second save is compared with the first
		shards, _ := placed(d, small, k)
		if err := begin(t, s.Save, shards[:1]).Wait(bounded(t)); err != nil {
			t.Fatalf("saving block %s: %v", k, err)
		}
		holding.Store(hold)
		defer holding.Store(false)
		return begin(t, s.Save, shards[:1]).Wait(bounded(t))
	}
	for n := range 2 { // there is memory for two blocks
		if err := twice(key(n), true); !errors.Is(err, kv.ErrAbandoned) {
			t.Fatalf("a comparison that hangs: %v", err)
		}
	}
	if err := twice(key(2), false); !errors.Is(err, kv.ErrTimeout) || errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("a comparison in memory that the device may write to: %v", err)
	}
	close(gate)
	eventually(t, "the memory is back", func() bool { return twice(key(3), false) == nil })
	_ = s.Close() // it may know that copies were abandoned
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
