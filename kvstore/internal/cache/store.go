package cache

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/mover"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

var _ kv.Store = (*Store)(nil)

// Store is a cache in front of another kv.Store.
type Store struct {
	next   kv.Store
	layout kv.Layout
	o      Options
	value  table.Policy
	table  *table.Table
	count  kv.Counters

	group        *batch.Group // everything that uses the memory, except the services
	loads, saves *batch.Limit
	copiers      *workerpool.Pool
	grain        int            // shards that a copier takes at a time
	mover        *mover.Mover   // nil without a device
	staging      *staging       // the same
	services     sync.WaitGroup // goroutines that run until Close
	ended        chan struct{}  // closed when the group is empty
	close        func() error   // runs shutdown once

	planner   planner
	wantMore  chan struct{} // holds a token when there is something to prefetch
	blocks    *assembly.Table[slotRef]
	serial    atomic.Uint64 // of the last batch of Load
	copying   atomic.Int64  // shards of saves that the copiers have
	abandoned atomic.Int64  // copies into slots that the device has not ended, see unclear

	handOver func() // lets who waits for the lock have it, before this goroutine takes it again

	mu         sync.Mutex
	pins       []int32  // by slot: batches of this process that read from it
	marks      []uint64 // by slot: the last batch that pinned it
	pinned     int      // slots with pins
	owed       []func() // changes to the table that wait for its lock
	victims    []table.Victim
	searched   bool // in this Do a search of all slots has found no victim
	fillings   map[int32]*filling
	space      chan struct{}        // closed when a slot may have become free; nil while no save waits
	assembling int                  // slots in which saves assemble a block
	direct     map[kv.Key]time.Time // blocks that are saved directly to next, and when that was last seen
	wanted     []kv.Key             // to be prefetched
	unclear    map[int32]int        // slots that the device may still write into, and how many copies may
	left       bool                 // the memory is not used any more
	write      writeBehind
}

const batchesAtOnce = 1024 // of Load, and of Save; more wait

// New returns a cache in front of next, which it then owns: Close closes next, too. After
// an error next is the caller's.
func New(next kv.Store, o Options) (*Store, error) {
	l := next.Layout()
	if err := o.complete(l); err != nil {
		return nil, err
	}
	registrar, _ := next.(kv.Registrar)
	t, err := open(o, l, registrar != nil)
	if err != nil {
		return nil, err
	}
	if o.Device != nil {
		err = o.Device.Register(t.Bytes())
	}
	if err == nil && registrar != nil {
		if err = registrar.Register(t.Name(), t.Bytes()); err != nil && o.Device != nil {
			err = errors.Join(err, o.Device.Unregister(t.Bytes()))
		}
	}
	if err != nil {
		_ = t.Leave() // err is the first error
		t.Unmap()
		return nil, fmt.Errorf("kvstore: cache: register memory: %w", err)
	}
	s := &Store{
		next: next, layout: l, o: o, value: policies(o.Policy), table: t,
		copiers:  workerpool.New(o.Streams, 0),
		grain:    int(max(1, grainBytes/l.ShardBytes)),
		loads:    batch.LimitBatches(batchesAtOnce),
		saves:    batch.LimitBatches(batchesAtOnce),
		ended:    make(chan struct{}),
		wantMore: make(chan struct{}, 1),
		blocks:   assembly.New[slotRef](l.Shards(), table.Sum),
		pins:     make([]int32, t.Slots()),
		marks:    make([]uint64, t.Slots()),
		fillings: map[int32]*filling{},
		direct:   map[kv.Key]time.Time{},
		unclear:  map[int32]int{},
		handOver: runtime.Gosched,
	}
	s.group = batch.NewGroup(l, &s.count, o.Timeout)
	if o.Device != nil {
		s.group.TakeMemoryOf(o.Device)
		s.mover = mover.New(o.Device, o.DeviceStreams, o.Timeout, &s.count.Device)
		s.staging = newStaging(o, s.mover, l)
	}
	s.close = sync.OnceValue(s.shutdown)
	s.planner.init()
	s.write.init(&s.mu)
	s.mu.Lock()
	s.do(s.adopt)
	s.mu.Unlock()
	s.services.Go(s.planSaves)
	s.services.Go(s.maintain)
	s.services.Go(s.prefetcher)
	for range writers {
		s.write.wg.Go(s.writer)
	}
	return s, nil
}

// grainBytes is how much one goroutine copies before it returns to the queue.
const grainBytes = 256 << 10

func open(o Options, l kv.Layout, registrar bool) (*table.Table, error) {
	c := o.config(l)
	var t *table.Table
	var err error
	switch {
	case o.SharedName != "":
		t, err = table.Open(memory.NamePrefix+"cache-"+o.SharedName, c, true)
	case registrar:
		const prefix = memory.NamePrefix + "own-"
		table.Sweep(prefix)
		t, err = table.Open(prefix+wire.NewUUID().String(), c, false)
	default:
		if err := checkMemory(c.Bytes()); err != nil {
			return nil, err
		}
		t, err = table.Private(c)
	}
	if err != nil {
		return nil, fmt.Errorf("kvstore: cache: %w", err)
	}
	return t, nil
}

// do runs fn inside the table, after the changes that are owed. The lock is held.
func (s *Store) do(fn func()) error {
	return s.table.Do(func() {
		for len(s.owed) > 0 {
			pay := s.owed[0]
			s.owed = s.owed[1:]
			pay()
		}
		s.searched = false
		fn()
	})
}

// settle is do for a change that must be made: if the table cannot be locked now, it is
// made with the next do.
func (s *Store) settle(fn func()) {
	if err := s.do(fn); err != nil && !errors.Is(err, table.ErrBroken) {
		s.owed = append(s.owed, fn)
	}
}

// spaceChanged wakes the saves that wait for a slot. The lock is held.
func (s *Store) spaceChanged() {
	if s.space != nil {
		close(s.space)
		s.space = nil
	}
}

// alloc frees a slot. The lock and the table are held.
func (s *Store) alloc() (int32, bool) {
	for {
		for last := len(s.victims) - 1; last >= 0; last-- {
			v := s.victims[last]
			s.victims = s.victims[:last]
			had, ok := s.table.Evict(v)
			if had {
				s.count.EvictedBlocks.Add(1)
			}
			if ok {
				invariants.Check(s.pins[v.Slot] == 0 || s.table.Broken(), "slot %d is evicted with %d pins", v.Slot, s.pins[v.Slot])
				return v.Slot, true
			}
		}
		if s.searched {
			return 0, false
		}
		s.searched = true
		s.victims = s.table.Victims(s.value, min(256, max(1, s.table.Slots()/64)))
		if len(s.victims) == 0 {
			return 0, false
		}
		s.searched = false
	}
}

// pin keeps a slot from being used for another block. The lock and the table are
// held.
func (s *Store) pin(slot int32) {
	if s.pins[slot]++; s.pins[slot] == 1 {
		s.pinned++
		s.table.Pin(slot)
	}
}

// unpin removes pins. The lock is held.
func (s *Store) unpin(slots []int32) {
	if len(slots) == 0 {
		return
	}
	s.settle(func() {
		for _, slot := range slots {
			invariants.Check(s.pins[slot] > 0, "slot %d has %d pins and loses one", slot, s.pins[slot])
			if s.pins[slot]--; s.pins[slot] == 0 {
				s.pinned--
				s.table.Unpin(slot)
			}
		}
	})
	s.spaceChanged()
}

// checkPins asserts that the counts of pins agree with each other and with the table. The
// lock is held.
func (s *Store) checkPins() {
	if !invariants.Enabled {
		return
	}
	s.do(func() {
		pinned := 0
		for slot, pins := range s.pins {
			if pins > 0 {
				pinned++
			}
			there := s.table.Head(int32(slot)).Pinned
			invariants.Check(pins == 0 || there || s.table.Broken(), "slot %d has %d pins, and none in the table", slot, pins)
			invariants.Check(pins > 0 || !there || s.table.Shared() || s.table.Broken(), "slot %d is pinned in the table alone", slot)
		}
		invariants.Check(pinned == s.pinned, "%d slots have pins, counted as %d", pinned, s.pinned)
	})
}

// Layout is next's.
func (s *Store) Layout() kv.Layout { return s.layout }

// Stats returns what the cache has counted, and what next has.
func (s *Store) Stats() kv.Stats {
	stats := s.count.Stats("Cache")
	stats.Blocks = 0
	stats.CapacityBytes = int64(s.table.Slots()) * s.table.SlotBytes()
	if s.group.Enter() == nil {
		s.mu.Lock()
		s.do(func() { stats.Blocks = s.table.Whole() })
		s.mu.Unlock()
		s.group.Leave()
	}
	next := s.next.Stats()
	stats.Next = &next
	return stats
}
