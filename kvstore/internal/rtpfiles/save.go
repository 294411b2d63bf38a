package rtpfiles

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Save writes blocks into the files in which the engine would have them, as far as the batch
// has what goes into such a file: whole blocks, and of RTP-LLM's items all from the first
// one to the last or to the end of the prompt. All others get files of their own, until pack
// puts them into items.
func (x *items) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return x.begin(ctx, batch.Save, shards, x.save)
}

func (x *items) save(b *batch.Batch) {
	x.chains.see(numberKeys(keysOf(b, all(b))), true)
	whole := x.whole(b)
	files, err := x.cut(b, whole)
	if err != nil {
		b.SettleAll(all(b), err)
		return
	}
	in := map[kv.Key]bool{}
	for _, blocks := range files {
		for _, key := range blocks {
			in[key] = true
		}
	}
	var rest []int
	for i := range b.Len() {
		if !in[b.Shard(i).Key] {
			rest = append(rest, i)
		}
	}
	// One file after the other: RTP-LLM takes a prompt for stored if its last item is.
	restSaved := make(chan struct{})
	x.group.Go(func() {
		defer close(restSaved)
		x.saveAlone(b, rest)
	})
	for _, blocks := range files {
		var which []int
		for _, key := range blocks {
			which = append(which, whole[key]...)
		}
		slices.Sort(which)
		if follows, err := x.follows(b.Context(), blocks[0]); err != nil {
			b.SettleAll(which, err)
		} else if !follows {
			x.saveAlone(b, which)
		} else {
			x.saveFile(b, blocks, which)
		}
	}
	<-restSaved
	x.tidy()
}

// whole returns the blocks of number keys of which the batch has each shard once, and which
// shards these are.
func (x *items) whole(b *batch.Batch) map[kv.Key][]int {
	n := x.o.Layout.Shards()
	which := map[kv.Key][]int{}
	for i := range b.Len() {
		if key := b.Shard(i).Key; isNumber(key) {
			which[key] = append(which[key], i)
		}
	}
	for key, some := range which {
		has := make([]bool, n)
		for _, i := range some {
			has[b.Shard(i).Index] = true
		}
		if len(some) != n || slices.Contains(has, false) {
			delete(which, key)
		}
	}
	return which
}

// cut returns the blocks of the files that a batch writes.
func (x *items) cut(b *batch.Batch, whole map[kv.Key][]int) ([][]kv.Key, error) {
	var blocks []kv.Key
	for _, key := range keysOf(b, all(b)) {
		if whole[key] != nil {
			blocks = append(blocks, key)
		}
	}
	if x.format.fixed() {
		return x.cutItems(blocks), nil
	}
	// KVCM's manager leaves out the blocks that are stored.
	there, err := x.lookup(b.Context(), blocks)
	if err != nil {
		return nil, err
	}
	var lacking []kv.Key
	for i, key := range blocks {
		if !there[i] {
			lacking = append(lacking, key)
		}
	}
	files := slices.Collect(slices.Chunk(lacking, x.o.PackBlocks))
	return slices.DeleteFunc(files, func(blocks []kv.Key) bool { return len(blocks) == 1 }), nil
}

// cutItems returns the items that blocks fill, from the first block of each.
func (x *items) cutItems(blocks []kv.Key) (files [][]kv.Key) {
	after := map[kv.Key]kv.Key{}
	places := map[kv.Key]link{}
	for _, key := range blocks {
		l, ok := x.chains.place(key)
		if !ok {
			continue // forgotten by now
		}
		places[key] = l
		if _, two := after[l.before]; !two && l.at > 0 {
			after[l.before] = key
		}
	}
	most := x.o.PackBlocks
	for _, key := range blocks {
		l, ok := places[key]
		if !ok || l.at%most != 0 {
			continue
		}
		item := []kv.Key{key}
		for len(item) < most {
			next, ok := after[key]
			if !ok || places[next].at != l.at+len(item) {
				break
			}
			item = append(item, next)
			key = next
		}
		if len(item) == most || !places[key].goesOn {
			files = append(files, item)
		}
	}
	return files
}

// follows reports whether the item that begins with a block may be there: the one before it
// is, or there is none.
func (x *items) follows(ctx context.Context, first kv.Key) (bool, error) {
	l, ok := x.chains.place(first)
	if !x.format.fixed() || ok && l.at == 0 {
		return true, nil
	}
	if !ok {
		return false, nil
	}
	before, _, ok := x.chains.upTo(l.before, x.o.PackBlocks)
	if !ok || len(before) < x.o.PackBlocks {
		return false, nil
	}
	f, ok := x.format.file(before)
	if !ok {
		return false, nil
	}
	return x.isThere(ctx, file{f, len(before)})
}

// note records which blocks a file has, before it appears.
func (x *items) note(ctx context.Context, f file, blocks []kv.Key, record func(kv.Key, []uint64) error) error {
	if f.blocks == 1 {
		return nil // the key tells
	}
	return x.bounded(ctx, func() error {
		for at, key := range blocks {
			if err := record(key, spot{f, at}.record()); err != nil {
				return err
			}
		}
		return nil
	})
}

// noteAgain records it once more when the file is there: a Delete or a compaction that has not
// seen the file may have dropped the records.
func (x *items) noteAgain(ctx context.Context, f file, blocks []kv.Key) error {
	if young := x.young.Load(); young != nil {
		for _, key := range blocks {
			young.Store(key, nil)
		}
	}
	there := time.Now()
	return x.note(ctx, f, blocks, func(key kv.Key, spot []uint64) error {
		if _, err := x.spotLog.Again(key, there); err != nil {
			return err
		}
		return x.spotLog.Record(key, spot)
	})
}

// saveFile saves whole blocks in one file. None is settled before the file is there.
func (x *items) saveFile(b *batch.Batch, blocks []kv.Key, which []int) {
	key, ok := x.format.file(blocks)
	if !ok {
		x.saveAlone(b, which)
		return
	}
	f := file{key, len(blocks)}
	at := map[kv.Key]spot{}
	for i, block := range blocks {
		at[block] = spot{f, i}
	}
	shards := make([]kv.Shard, len(which))
	for n, i := range which {
		shards[n] = x.within(b.Shard(i), at[b.Shard(i).Key])
	}
	files, err := x.filesOf(f.blocks)
	if err == nil {
		err = x.note(b.Context(), f, blocks, x.spotLog.Record)
	}
	var t *kv.Task
	if err == nil {
		t, err = files.Save(b.Context(), shards)
	}
	if err != nil {
		b.SettleAll(which, err)
		return
	}
	<-t.Done()
	if t.Err() == nil {
		// The file is there, so a cancellation comes too late: who gets its error takes the
		// blocks for not stored.
		if err := x.noteAgain(context.WithoutCancel(b.Context()), f, blocks); err != nil {
			b.SettleAll(which, err)
			return
		}
		x.wrote(f)
	}
	for n, i := range which {
		err, _ := t.Result(n)
		if err == nil && t.Err() != nil {
			err = fmt.Errorf("kvstore: block %s is not stored, because another one of its file is not: %w", b.Shard(i).Key, t.Err())
		}
		b.Settle(i, named(err, b.Shard(i).Key))
	}
}

// wrote notes a file that ends within an item: if the rest of the item comes before a Flush,
// the prompt was saved in pieces, and no engine would have written the file.
func (x *items) wrote(f file) {
	if x.format.fixed() && f.blocks < x.o.PackBlocks {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.fresh[f] = struct{}{}
	}
}

// saveAlone saves shards of blocks that are not there into files of their own.
func (x *items) saveAlone(b *batch.Batch, which []int) {
	spots, err := x.spots(b.Context(), keysOf(b, which), false)
	if err != nil {
		b.SettleAll(which, err)
		return
	}
	var p part
	for _, i := range which {
		shard := b.Shard(i)
		if _, there := spots[shard.Key]; there {
			b.Settle(i, nil)
			continue
		}
		p.which, p.shards = append(p.which, i), append(p.shards, shard)
	}
	if len(p.which) == 0 {
		return
	}
	t, err := x.Store.Save(b.Context(), p.shards)
	if err != nil {
		b.SettleAll(p.which, err)
		return
	}
	ended := map[kv.Key]bool{} // blocks whose last shard was among these
	last := x.o.Layout.Shards() - 1
	x.group.Hold() // the last shard may end the batch
	defer x.group.Leave()
	for n, err := range t.All() {
		i := p.which[n]
		if shard := b.Shard(i); err == nil && isNumber(shard.Key) && x.format.fixed() {
			x.mu.Lock()
			if len(x.loose) < mostLinks {
				x.loose[shard.Key] = struct{}{}
			}
			x.mu.Unlock()
			if shard.Index == last {
				ended[shard.Key] = true
			}
		}
		b.Settle(i, err)
	}
	if len(ended) > 0 {
		x.group.Go(func() { x.packFull(ended) })
	}
}
