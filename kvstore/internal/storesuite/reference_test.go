package storesuite

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// disk holds what remains when a reference store is closed.
type disk struct {
	mu     sync.Mutex
	blocks map[kv.Key]*block
}

type block struct {
	namespace kv.Fingerprint
	shards    [][]byte
	sums      []uint64
}

// reference is the simplest correct store: blocks in a map, a goroutine for each batch.
// A defect makes it violate one sentence of the contract.
type reference struct {
	o        Options
	discards bool
	defect   string
	disk     *disk
	counters kv.Counters

	turns  chan struct{} // one for each batch that runs
	quit   chan struct{}
	once   sync.Once
	ended  atomic.Bool    // Close has returned
	calls  sync.WaitGroup // calls and batches
	mu     sync.Mutex     // guards the fields below
	closed bool
	blocks map[kv.Key]*block
	parts  map[part]*block
	refuse map[kv.Key]bool // blocks of which two writers have brought parts
	files  []*os.File
	met    int           // see meet
	allMet chan struct{} // closed when all writers have met
}

var _ kv.Store = (*reference)(nil)

// part names a block that is not whole: that of a batch that has all of its shards, or that
// of all batches with some.
type part struct {
	key kv.Key
	of  *kv.Task
}

// partOf returns where a shard of a batch belongs.
func (r *reference) partOf(t *kv.Task, name kv.Key) part {
	have := map[int]bool{}
	for i := range t.Len() {
		if s := t.Shard(i); r.name(s.Key) == name {
			have[s.Index] = true
		}
	}
	if len(have) == r.o.Layout.Shards() && !r.is("mixes the shards of writers") && !r.is("keeps what another writer has begun") {
		return part{name, t}
	}
	return part{name, nil}
}

func newReference(d *disk, o Options, discards bool, defect string) *reference {
	r := &reference{
		o: o, discards: discards, defect: defect, disk: d,
		turns: make(chan struct{}, 4), quit: make(chan struct{}),
		blocks: map[kv.Key]*block{}, parts: map[part]*block{}, refuse: map[kv.Key]bool{},
		allMet: make(chan struct{}),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, b := range d.blocks {
		if b.namespace == o.Namespace || r.is("returns what another namespace has") {
			r.blocks[k] = b
		}
	}
	if r.is("leaves a file open") {
		if f, err := os.Open(os.DevNull); err == nil {
			r.files = append(r.files, f)
		}
	}
	return r
}

func (r *reference) is(defect string) bool { return r.defect == defect }

// name returns the key under which a block is kept.
func (r *reference) name(k kv.Key) kv.Key {
	if r.is("returns another key's bytes") {
		k[15] &^= 1
	}
	return k
}

// enter begins a call unless the store is closed.
func (r *reference) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed && !r.is("answers after Close") {
		return kv.ErrClosed
	}
	r.calls.Add(1)
	return nil
}

func (r *reference) Layout() kv.Layout {
	if r.is("has another layout") {
		return kv.Layout{BlockBytes: 1, ShardBytes: 1}
	}
	return r.o.Layout
}

func (r *reference) there(k kv.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.blocks[r.name(k)]
	if b == nil && r.is("shows a block before it is whole") {
		b = r.parts[part{r.name(k), nil}]
	}
	return b != nil
}

func (r *reference) Lookup(_ context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		if !r.is("takes a found of any length") {
			return err
		}
		found = append(found, make([]bool, len(keys))...)
	}
	if err := r.enter(); err != nil {
		if r.is("ends lookups otherwise while it closes") && !r.ended.Load() {
			return errors.New("interrupted")
		}
		return err
	}
	defer r.calls.Done()
	for i, k := range keys {
		there := r.there(k)
		if there {
			r.counters.Found.Add(1)
		}
		if there || !r.is("leaves what was in found") {
			found[i] = there
		}
	}
	if !r.is("counts no lookups") {
		r.counters.LookedUp.Add(int64(len(keys)))
	}
	return nil
}

func (r *reference) LookupPrefix(_ context.Context, keys []kv.Key) (int, error) {
	if err := r.enter(); err != nil {
		return 0, err
	}
	defer r.calls.Done()
	n := 0
	for _, k := range keys {
		if r.there(k) {
			n++
		} else if !r.is("counts a prefix beyond its gaps") {
			break
		}
	}
	return n, nil
}

func (r *reference) Prefetch(keys []kv.Key) {
	if r.is("takes a hint for a block") {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, k := range keys {
			if r.blocks[k] == nil {
				r.blocks[k] = r.newBlock()
			}
		}
	}
}

func (r *reference) newBlock() *block {
	n := r.o.Layout.Shards()
	return &block{namespace: r.o.Namespace, shards: make([][]byte, n), sums: make([]uint64, n)}
}

func (r *reference) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return r.begin(ctx, shards, r.load)
}

func (r *reference) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return r.begin(ctx, shards, r.save)
}

func (r *reference) begin(ctx context.Context, shards []kv.Shard, move func(*kv.Task, int) error) (*kv.Task, error) {
	if err := r.o.Layout.CheckShards(shards); err != nil {
		if !r.is("takes batches that are wrong") || len(shards) == 0 || shards[0].Buf == nil {
			return nil, err
		}
		shards = shards[:1]
	}
	if err := r.enter(); err != nil {
		return nil, err
	}
	if r.is("ignores contexts") {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case r.turns <- struct{}{}:
	case <-ctx.Done():
		r.calls.Done()
		return nil, ctx.Err()
	case <-r.quit:
		r.calls.Done()
		return nil, kv.ErrClosed
	}
	t := kv.NewTask(ctx, shards)
	go func() {
		defer func() {
			<-r.turns
			r.calls.Done()
		}()
		for i := range shards {
			if r.is("never settles the last shard") && i > 0 && i == len(shards)-1 {
				return
			}
			t.Settle(i, r.one(t, i, move))
			switch {
			case r.is("settles a shard twice") && i == 3:
				t.Settle(i, nil)
			case r.is("writes to buffers after they were settled") && i == 0:
				r.calls.Go(func() {
					<-r.quit
					t.Shard(i).Buf[0]++
				})
			}
		}
	}()
	return t, nil
}

func (r *reference) one(t *kv.Task, i int, move func(*kv.Task, int) error) error {
	if err := t.Context().Err(); err != nil {
		return err
	}
	select {
	case <-r.quit:
		if r.is("lets Close wait for nothing") {
			time.Sleep(100 * time.Millisecond)
		}
		return kv.ErrClosed
	default:
		return move(t, i)
	}
}

func (r *reference) load(t *kv.Task, i int) error {
	s := t.Shard(i)
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.blocks[r.name(s.Key)]
	if b == nil {
		if r.is("fails a load with one absent block") {
			for n := i + 1; n < t.Len(); n++ {
				if _, settled := t.Result(n); !settled {
					r.blocks = map[kv.Key]*block{}
				}
			}
		}
		r.counters.MissedShards.Add(1)
		if r.is("calls a miss something else") {
			return errors.New("no such file or directory")
		}
		return kv.ErrMiss
	}
	if xxh3.Hash(b.shards[s.Index]) != b.sums[s.Index] && !r.is("returns what is damaged") {
		r.counters.MissedShards.Add(1)
		if !r.is("counts no damage") {
			r.counters.CorruptBlocks.Add(1)
		}
		if !r.is("keeps what is damaged") {
			delete(r.blocks, s.Key)
		}
		return &kv.CorruptError{Key: s.Key, Where: "memory", What: "a checksum is wrong"}
	}
	n := copy(s.Buf, b.shards[s.Index])
	if r.is("writes beyond a buffer") {
		s.Buf[:n+1][n] = 0
	}
	r.counters.LoadedShards.Add(1)
	r.counters.LoadedBytes.Add(int64(n))
	return nil
}

func (r *reference) save(t *kv.Task, i int) error {
	s := t.Shard(i)
	if r.is("mixes the shards of writers") {
		r.meet()
	}
	if r.is("changes what it saves") {
		defer func() { s.Buf[0]++ }()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters.SavedShards.Add(1)
	r.counters.SavedBytes.Add(int64(len(s.Buf)))
	name := r.name(s.Key)
	if r.discards {
		return nil
	}
	if old := r.blocks[name]; old != nil {
		switch {
		case r.is("replaces what is there"):
			old.shards[s.Index] = append([]byte(nil), s.Buf...)
			old.sums[s.Index] = xxh3.Hash(s.Buf)
		case r.is("fails the second writer"):
			return errors.New("file exists")
		}
		return nil
	}
	at := r.partOf(t, name)
	p := r.parts[at]
	if p == nil {
		p = r.newBlock()
		r.parts[at] = p
	}
	if have := p.shards[s.Index]; have != nil && xxh3.Hash(s.Buf) != p.sums[s.Index] {
		if r.is("mixes the shards of writers") || r.is("mixes the shards of batches") || r.is("keeps what another writer has begun") {
			return nil
		}
		r.refuse[name] = true
		delete(r.parts, at)
	}
	if r.refuse[name] && at.of == nil {
		return kv.ErrConflict
	}
	p.shards[s.Index] = append([]byte(nil), s.Buf...)
	if r.is("reads saves after they were settled") {
		p.shards[s.Index] = s.Buf
	}
	p.sums[s.Index] = xxh3.Hash(s.Buf)
	if r.is("loses a shard") && s.Key == key(1) && s.Index == 1 {
		clear(p.shards[1])
		p.sums[1] = xxh3.Hash(p.shards[1])
	}
	last := s.Index == r.o.Layout.Shards()-1
	for n, have := range p.shards {
		if have != nil {
			continue
		}
		if !r.is("completes a block with its last index") || !last {
			return nil
		}
		p.shards[n] = make([]byte, r.o.Layout.ShardBytes)
		p.sums[n] = xxh3.Hash(p.shards[n])
	}
	r.blocks[name] = p
	delete(r.parts, at)
	return nil
}

// meet lets the writers of one round of a test save a shard each, and then the next one. Some go
// block by block and others layer by layer, so both have shards of a block.
func (r *reference) meet() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.met++
	if r.met%differingWriters == 0 {
		close(r.allMet)
		r.allMet = make(chan struct{})
		return
	}
	met := r.allMet
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-met:
	case <-r.quit:
	}
}

func (r *reference) Delete(_ context.Context, keys []kv.Key) error {
	if err := r.enter(); err != nil {
		return err
	}
	defer r.calls.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range keys {
		switch {
		case r.is("deletes nothing"), r.is("deletes all keys but the last") && len(keys) > 1 && i == len(keys)-1:
			continue
		case r.is("fails to delete what is not there") && r.blocks[r.name(k)] == nil:
			return kv.ErrMiss
		case r.is("deletes all that there is"):
			clear(r.blocks)
		}
		delete(r.blocks, r.name(k))
		delete(r.parts, part{r.name(k), nil})
		if r.is("remembers what was deleted as damaged") {
			r.counters.CorruptBlocks.Add(1)
		}
		if !r.is("deletes from memory alone") {
			r.disk.mu.Lock()
			delete(r.disk.blocks, r.name(k))
			r.disk.mu.Unlock()
		}
	}
	return nil
}

func (r *reference) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		if err := r.enter(); err != nil {
			for range 2 {
				if !yield(kv.Key{}, err) || !r.is("goes on after an error of Keys") {
					return
				}
			}
			return
		}
		defer r.calls.Done()
		r.mu.Lock()
		all := slices.Collect(maps.Keys(r.blocks))
		if r.is("lists blocks that are not whole") {
			for p := range r.parts {
				all = append(all, p.key)
			}
		}
		r.mu.Unlock()
		switch {
		case r.is("lists all but one") && len(all) > 0:
			all = all[1:]
		case r.is("lists one twice") && len(all) > 0:
			all = append(all, all[0])
		case r.is("holds its lock while it lists"):
			r.mu.Lock()
			defer r.mu.Unlock()
		}
		for _, k := range all {
			if err := ctx.Err(); err != nil && !r.is("lists without looking at the context") {
				yield(kv.Key{}, err)
				return
			}
			if !yield(k, nil) {
				return
			}
		}
	}
}

// Flush writes new blocks to the disk.
func (r *reference) Flush(ctx context.Context) error {
	if err := r.enter(); err != nil {
		return err
	}
	defer r.calls.Done()
	if !r.is("flushes nothing") {
		r.write()
	}
	return nil
}

func (r *reference) write() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disk.mu.Lock()
	defer r.disk.mu.Unlock()
	for k, b := range r.blocks {
		r.disk.blocks[k] = b
	}
	if r.is("keeps unfinished blocks") {
		for k, b := range r.parts {
			for i := range b.shards {
				if b.shards[i] == nil {
					b.shards[i] = make([]byte, r.o.Layout.ShardBytes)
				}
			}
			r.disk.blocks[k.key] = b
		}
	}
}

func (r *reference) Stats() kv.Stats {
	s := r.counters.Stats("Reference")
	if r.is("holds more than it says") {
		s.Blocks = 0
	}
	return s
}

func (r *reference) Close() error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.mu.Unlock()
	if again && r.is("cannot be closed twice") {
		return kv.ErrClosed
	}
	r.once.Do(func() { close(r.quit) })
	if r.is("lets Close wait for nothing") {
		return nil
	}
	r.calls.Wait()
	if r.is("ends lookups otherwise while it closes") {
		time.Sleep(10 * time.Millisecond)
	}
	r.ended.Store(true)
	if r.is("leaves a goroutine") {
		go func() { select {} }()
	}
	if !r.is("flushes nothing") && !r.is("writes only what was flushed") {
		r.write()
	}
	return nil
}

// damage flips a bit in some blocks on the disk and cuts some short.
func (d *disk) damage(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for n := range 12 {
		b := d.blocks[key(n)]
		if b == nil || rng.IntN(3) > 0 {
			continue
		}
		s := rng.IntN(len(b.shards))
		damaged := append([]byte(nil), b.shards[s]...)
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		b.shards[s] = damaged[:len(damaged)-rng.IntN(2)]
	}
}

// subject returns the reference store with a defect.
func subject(discards bool, defect string) Subject {
	var mu sync.Mutex
	disks := map[string]*disk{}
	at := func(dir string) *disk {
		mu.Lock()
		defer mu.Unlock()
		if disks[dir] == nil {
			disks[dir] = &disk{blocks: map[kv.Key]*block{}}
		}
		return disks[dir]
	}
	s := Subject{
		Open: func(_ testing.TB, dir string, o Options) kv.Store {
			return newReference(at(dir), o, discards, defect)
		},
		Discards: discards,
	}
	if !discards {
		s.Durable, s.Verified = true, true
		s.Damage = func(_ testing.TB, dir string, seed uint64) { at(dir).damage(seed) }
	}
	return s
}
