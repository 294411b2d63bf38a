package objects

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Save implements kv.Store. Shards are gathered in memory; with the last one of a block,
// its object is put.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Save, shards, s.limit)
	if err != nil {
		return nil, err
	}
	s.group.Go(func() {
		s.expire()
		d := &saving{Batch: b, store: s, writer: assembly.WriterOf(b.Context(), s.o.Layout, shards)}
		s.eachBlock(shards, d.block)
	})
	return b.Task, nil
}

// eachBlock calls do for each block of a batch at once, with the places of its shards.
func (s *Store) eachBlock(shards []kv.Shard, do func(places []int)) {
	var order []kv.Key
	places := map[kv.Key][]int{}
	for i, shard := range shards {
		if places[shard.Key] == nil {
			order = append(order, shard.Key)
		}
		places[shard.Key] = append(places[shard.Key], i)
	}
	for _, key := range order {
		s.group.Go(func() { do(places[key]) })
	}
}

// saving is a batch of saves.
type saving struct {
	*batch.Batch
	store  *Store
	writer *assembly.Writer
}

// errPresent says that the backend has the block.
var errPresent = errors.New("it is there")

// block saves what the batch has of a block.
func (d *saving) block(places []int) {
	for n, i := range places {
		switch err := d.shard(i); {
		case err == errPresent:
			d.SettleAll(places[n:], nil)
			return
		case errors.Is(err, workerpool.ErrOverdue), errors.Is(err, kv.ErrTimeout): // the others would wait as long
			d.SettleAll(places[n:], err)
			return
		default:
			d.Settle(i, err)
		}
	}
}

// shard saves a shard, and the block if it is the last one.
func (d *saving) shard(i int) error {
	s, shard := d.store, d.Shard(i)
	b, err := d.claim(shard)
	if b == nil {
		return err
	}
	part := b.Payload[blockhead.Size+int64(shard.Index)*s.o.Layout.ShardBytes:][:s.o.Layout.ShardBytes]
	copy(part, shard.Buf)
	b.Sums[shard.Index] = blockhead.Sum(part)
	switch outcome := s.blocks.Written(b, shard.Index); outcome {
	case assembly.Whole:
	case assembly.Dead:
		s.drop(b)
		return outcome.Err(b.Key)
	default:
		return outcome.Err(b.Key)
	}
	head := blockhead.Head{Namespace: s.o.Namespace, Key: b.Key, BlockBytes: s.o.Layout.BlockBytes, Sums: b.Sums}
	head.Encode(b.Payload[:blockhead.Size])
	name, object := s.name(b.Key), b.Payload
	// The batch's own context does not end this: other batches have brought shards, too.
	var begun atomic.Bool
	err = s.call(context.Background(), "Put", func(ctx context.Context) error {
		begun.Store(true)
		defer s.room.Give() // while an overdue call goes on, it has the object
		return s.backend.Put(ctx, name, object)
	})
	s.blocks.Finish(b)
	if !begun.Load() {
		s.room.Give()
	}
	if err == kv.ErrMiss {
		err = fmt.Errorf("store %s: Put: there is no such object: %w", s.o.Name, errBroken)
	}
	return err
}

// errBroken says that a backend does not keep its contract.
var errBroken = errors.New("the backend breaks its contract")

// claim waits until this batch may write a shard, and returns the block to write it to. It
// returns none if the shard is there already, or with an error.
func (d *saving) claim(shard kv.Shard) (*assembly.Block[[]byte], error) {
	s := d.store
	for {
		if err := d.Ended(); err != nil {
			return nil, err
		}
		again := make(chan struct{})
		b, verdict, err := s.blocks.Enter(d.writer, shard, func() ([]byte, error) { return d.begin(shard.Key) }, func() { close(again) })
		switch {
		case errors.Is(err, kv.ErrConflict) && b != nil:
			s.drop(b)
			return nil, err
		case err != nil:
			return nil, err
		case verdict == assembly.Write:
			return b, nil
		case verdict == assembly.Have:
			return nil, nil
		}
		if err := d.wait(again, shard.Key); err != nil {
			return nil, err
		}
	}
}

// wait waits for a change of a block that another batch writes.
func (d *saving) wait(again <-chan struct{}, key kv.Key) error {
	ctx, cancel := context.WithTimeout(d.Context(), d.store.o.Timeout)
	defer cancel()
	select {
	case <-again:
		return nil
	case <-ctx.Done():
	}
	if err := d.Ended(); err != nil {
		return err
	}
	return fmt.Errorf("%w: another batch writes block %s, and has not ended", kv.ErrTimeout, key)
}

// begin makes an object for a block that the backend does not have.
func (d *saving) begin(key kv.Key) ([]byte, error) {
	found, err := d.store.has(d.Context(), []kv.Key{key})
	switch {
	case err != nil:
		return nil, err
	case found[0]:
		return nil, errPresent
	}
	if err := d.takeRoom(key); err != nil {
		return nil, err
	}
	return make([]byte, d.store.objectBytes()), nil
}

// takeRoom waits for room for one more unfinished block, for as long as others are finished.
func (d *saving) takeRoom(key kv.Key) error {
	s := d.store
	err := s.room.Take(d.Context(), s.group)
	if !errors.Is(err, kv.ErrTimeout) {
		return err
	}
	return fmt.Errorf("store %s: block %s: %w: %d blocks of %d bytes are unfinished, as many as UnfinishedBytes allows, and none was finished within %v; save all shards of a block before those of the next, or raise UnfinishedBytes from %d",
		s.o.Name, key, kv.ErrTimeout, s.mostUnfinished(), s.objectBytes(), s.o.Timeout, s.o.UnfinishedBytes)
}
