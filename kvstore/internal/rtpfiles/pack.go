package rtpfiles

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// packFull puts blocks into items that are complete with these. While a call is doing so it
// leaves its blocks to that one: a queue of calls, each of which looks at all blocks, would grow
// as long as blocks are saved, and Flush and Close would stand at its end.
func (x *items) packFull(ended map[kv.Key]bool) {
	x.mu.Lock()
	left := x.ended != nil
	if !left {
		x.ended = map[kv.Key]bool{}
	}
	maps.Copy(x.ended, ended)
	x.mu.Unlock()
	for !left {
		x.mu.Lock()
		ended = x.ended
		x.ended = map[kv.Key]bool{}
		if len(ended) == 0 {
			x.ended = nil
		}
		x.mu.Unlock()
		if len(ended) == 0 {
			return
		}
		_ = x.pack(x.group.Closing(), func(blocks []kv.Key) bool {
			return len(blocks) == x.o.PackBlocks && slices.ContainsFunc(blocks, func(k kv.Key) bool { return ended[k] })
		})
	}
}

// packAll puts all blocks into items, also into such as are not complete.
func (x *items) packAll(ctx context.Context) error {
	return x.pack(ctx, func([]kv.Key) bool { return true })
}

// pack puts blocks that have files of their own into the items that are wanted, as far as all
// blocks of these and the items before them are there. Whatever fails, the blocks stay where
// they are; the error is that of a wait.
func (x *items) pack(ctx context.Context, wanted func(blocks []kv.Key) bool) error {
	select {
	case x.packing <- struct{}{}:
		defer func() { <-x.packing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	type end struct {
		key kv.Key
		at  int
	}
	var ends []end
	x.mu.Lock()
	for key := range x.loose {
		if l, ok := x.chains.place(key); ok {
			ends = append(ends, end{key, l.at})
		}
	}
	x.mu.Unlock()
	// The longest first: each has the blocks of the shorter ones.
	slices.SortFunc(ends, func(a, b end) int { return cmp.Or(cmp.Compare(b.at, a.at), slices.Compare(a.key[:], b.key[:])) })
	p := packer{x: x, ctx: ctx, in: map[kv.Key]bool{}, tried: map[kv.Key]bool{}}
	for _, end := range ends {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if p.in[end.key] {
			continue
		}
		if blocks, before, ok := x.chains.upTo(end.key, x.o.PackBlocks); ok && wanted(blocks) {
			p.ensure(blocks, before)
		}
	}
	return nil
}

// packer is one run of pack.
type packer struct {
	x     *items
	ctx   context.Context // of all waits: a packer lives within one call
	in    map[kv.Key]bool // blocks that are in an item by now
	tried map[kv.Key]bool // by file: whether it is there
}

// ensure makes the item of some blocks, and those before it, and reports whether it is there.
func (p *packer) ensure(blocks, before []kv.Key) bool {
	key, ok := p.x.format.file(blocks)
	if !ok {
		return false
	}
	if is, tried := p.tried[key]; tried {
		return is
	}
	is := p.makeItem(file{key, len(blocks)}, blocks, before)
	p.tried[key] = is
	for _, block := range blocks {
		p.in[block] = p.in[block] || is
	}
	return is
}

func (p *packer) makeItem(f file, blocks, before []kv.Key) bool {
	x := p.x
	if is, err := x.isThere(p.ctx, f); is || err != nil {
		if is {
			x.leaveAlone(p.ctx, blocks)
		}
		return is
	}
	there, err := x.lookup(p.ctx, blocks)
	if err != nil || slices.Contains(there, false) {
		return false
	}
	if len(before) > 0 {
		earlier, first, ok := x.chains.upTo(before[0], x.o.PackBlocks)
		if !ok || len(earlier) < x.o.PackBlocks || !p.ensure(earlier, first) {
			return false
		}
	}
	if x.copy(p.ctx, f, blocks) != nil {
		return false
	}
	x.wrote(f)
	x.leaveAlone(p.ctx, blocks)
	x.dropShorter(p.ctx, f, blocks)
	return true
}

// copy makes an item of blocks that are elsewhere, one after the other.
func (x *items) copy(ctx context.Context, f file, blocks []kv.Key) error {
	files, err := x.filesOf(f.blocks)
	if err == nil {
		err = x.note(ctx, f, blocks, x.spotLog.Record)
	}
	if err != nil {
		return err
	}
	block := make([]byte, x.o.Layout.BlockBytes)
	for at, key := range blocks {
		shards := x.o.Layout.ByBlock([]kv.Key{key}, [][]byte{block})
		if err := x.loadOne(ctx, key, shards); err != nil {
			return err
		}
		for i := range shards {
			shards[i] = x.within(shards[i], spot{f, at})
		}
		t, err := files.Save(ctx, shards)
		if err == nil {
			<-t.Done()
			err = t.Err()
		}
		if err != nil {
			return err
		}
	}
	return x.noteAgain(ctx, f, blocks)
}

// loadOne loads a block.
func (x *items) loadOne(ctx context.Context, key kv.Key, shards []kv.Shard) error {
	shards = slices.Clone(shards)
	spots, err := x.spots(ctx, []kv.Key{key}, false)
	if err != nil {
		return err
	}
	at, inFile := spots[key]
	if inFile {
		for i := range shards {
			shards[i] = x.within(shards[i], at)
		}
	}
	s, err := x.storeOf(at.blocks)
	if err != nil {
		return err
	}
	t, err := s.Load(ctx, shards)
	if err != nil {
		return err
	}
	<-t.Done()
	return t.Err()
}

// leaveAlone removes the files of blocks' own, of those that are found without.
func (x *items) leaveAlone(ctx context.Context, blocks []kv.Key) {
	spots, err := x.spots(ctx, blocks, false)
	found := slices.DeleteFunc(slices.Clone(blocks), func(key kv.Key) bool {
		_, ok := spots[key]
		return !ok
	})
	if err == nil && x.DeleteAlone(ctx, found) == nil {
		x.forget(blocks)
	}
}

// forget ends the care for blocks that have files of their own.
func (x *items) forget(blocks []kv.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, key := range blocks {
		delete(x.loose, key)
	}
}

// dropShorter removes the files that have the first of these blocks, and were written only
// because the rest came later.
func (x *items) dropShorter(ctx context.Context, f file, blocks []kv.Key) {
	for n := 1; n < f.blocks; n++ {
		key, ok := x.format.file(blocks[:n])
		shorter := file{key, n}
		x.mu.Lock()
		_, fresh := x.fresh[shorter]
		delete(x.fresh, shorter)
		x.mu.Unlock()
		if !ok || !fresh {
			continue
		}
		if files, err := x.filesOf(n); err == nil {
			_ = files.DeleteAlone(ctx, []kv.Key{key})
		}
	}
}

// Flush puts the blocks that have files of their own into items: a prompt ends here.
func (x *items) Flush(ctx context.Context) error {
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := x.packAll(ctx); err != nil {
		return x.group.Explain(err)
	}
	x.mu.Lock()
	clear(x.fresh)
	x.mu.Unlock()
	x.tidy()
	return nil
}

// shutdown puts into items what can be, and closes everything. It packs when all batches have
// ended: those that go on being saved would have it wait for its turn after theirs.
func (x *items) shutdown() error {
	x.group.Close()
	ctx, cancel := context.WithTimeout(context.Background(), x.o.Timeout)
	_ = x.packAll(ctx)
	cancel()
	return errors.Join(x.endTidying(), x.closeFiles(), x.Store.Close(), x.bounded(context.Background(), x.spotLog.Close), x.engine.Close())
}

// Close ends what is under way and closes everything.
func (x *items) Close() error { return x.end() }
