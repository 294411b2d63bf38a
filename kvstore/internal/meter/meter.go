// Package meter measures a store from outside: how long its calls take and how much is
// in flight. It logs what an operator should know.
package meter

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmlog"
)

// Place is where a store is in its chain.
type Place int

const (
	Front  Place = iota // programs call it, or it is alone
	Behind              // a Cache calls it
)

// Store is another store with Timing in its Stats.
type Store struct {
	kv.Store
	name   string
	place  Place
	logger *slog.Logger

	tasks    atomic.Int64 // of the log
	requests atomic.Int64 // of the log, without an id of their own

	lookups kv.Histogram
	waiting atomic.Int64 // calls of Load and Save that have not returned
	loads   direction
	saves   direction
	dropped atomic.Int64 // dropped blocks that were logged
}

// direction is the measurements of loads, or of saves.
type direction struct {
	name, operation      string // in warnings, and in UCM's lines
	batchTime, shardTime kv.Histogram
	batches, shards      atomic.Int64 // in flight
}

// New measures next, which is closed when the returned store is.
func New(next kv.Store, place Place, logger *slog.Logger) kv.Store { return of(next, place, logger) }

// NewRegistrar is New for a store whose Register has an effect, and passes it on. Stores
// that move data by system calls gain nothing from registered memory.
func NewRegistrar(next kv.Store, place Place, logger *slog.Logger) kv.Store {
	if r, ok := next.(kv.Registrar); ok {
		return &registrar{of(next, place, logger), r}
	}
	return of(next, place, logger)
}

func of(next kv.Store, place Place, logger *slog.Logger) *Store {
	s := &Store{Store: next, name: next.Stats().Store, place: place, logger: logger}
	s.loads.name, s.loads.operation = "load", ucmlog.Load
	s.saves.name, s.saves.operation = "save", ucmlog.Dump
	if place == Behind {
		s.loads.operation, s.saves.operation = ucmlog.LoadBackend, ucmlog.DumpBackend
	}
	return s
}

// registrar is a Store that passes Register on.
type registrar struct {
	*Store
	kv.Registrar
}

// Lookup is next's.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	defer s.lookedUp(time.Now())
	err := s.Store.Lookup(ctx, keys, found)
	if err == nil && s.logsRequests() {
		hits := make([]kv.Key, 0, len(keys))
		for i, is := range found {
			if is {
				hits = append(hits, keys[i])
			}
		}
		s.logRequest(ctx, len(keys), hits)
	}
	return err
}

// LookupPrefix is next's.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	defer s.lookedUp(time.Now())
	n, err := s.Store.LookupPrefix(ctx, keys)
	if err == nil && s.logsRequests() {
		s.logRequest(ctx, len(keys), keys[:n])
	}
	return n, err
}

func (s *Store) lookedUp(began time.Time) { s.lookups.Add(time.Since(began)) }

// Load is next's.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, shards, &s.loads, s.Store.Load)
}

// Save is next's.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, shards, &s.saves, s.Store.Save)
}

func (s *Store) begin(ctx context.Context, shards []kv.Shard, d *direction, do func(context.Context, []kv.Shard) (*kv.Task, error)) (*kv.Task, error) {
	b := &batch{store: s, direction: d, began: time.Now()}
	if ucmlog.Enabled(s.logger) {
		b.line = s.taskOf(d, shards)
		ucmlog.Dispatching(s.logger, *b.line)
	}
	s.waiting.Add(1)
	t, err := do(ctx, shards)
	s.waiting.Add(-1)
	if err != nil {
		b.log(kv.Key{}, err)
		if b.line != nil {
			ucmlog.Refused(s.logger, *b.line, err)
		}
		return nil, err
	}
	b.task = t
	b.left.Store(int64(t.Len()))
	d.batches.Add(1)
	d.shards.Add(int64(t.Len()))
	t.Observe(b.settled)
	return t, nil
}

// batch measures one call of Load or Save.
type batch struct {
	store     *Store
	direction *direction
	task      *kv.Task
	began     time.Time
	left      atomic.Int64 // shards that are not settled

	line           *ucmlog.Task // nil where nothing is logged of the batch's course
	missed, failed atomic.Int64 // shards, for the line

	mu     sync.Mutex
	logged map[any]bool // damaged keys and kinds of errors that the log has; nil before the first
}

func (b *batch) settled(i int, err error) {
	d := time.Since(b.began)
	b.direction.shardTime.Add(d)
	if err != nil && err != kv.ErrMiss {
		b.log(b.task.Shard(i).Key, err)
	}
	if b.line != nil {
		b.count(err)
	}
	left := b.left.Add(-1)
	if settled := int64(b.task.Len()) - left; settled%group == 0 {
		b.direction.shards.Add(-group)
	} else if left == 0 {
		b.direction.shards.Add(-(settled % group))
	}
	if left == 0 {
		b.direction.batchTime.Add(d)
		b.direction.batches.Add(-1)
		if b.line != nil {
			ucmlog.Finished(b.store.logger, *b.line, d, b.missed.Load(), b.failed.Load())
		}
	}
}

// group is how many settled shards of a batch are subtracted at once from the count that
// all batches share, so that goroutines that settle do not contend for it.
const group = 16

// log writes what an operator wants to know: each damaged block of a batch once, and
// once for a batch that the storage did not answer.
func (b *batch) log(key kv.Key, err error) {
	var damaged *kv.CorruptError
	switch {
	case errors.As(err, &damaged):
		if b.first(damaged.Key) {
			b.store.logger.Warn("damaged block", "store", b.store.name, "key", damaged.Key.String(), "where", damaged.Where, "found", damaged.What)
		}
	case errors.Is(err, kv.ErrAbandoned):
		if b.first(kv.ErrAbandoned) {
			b.store.logger.Error("storage did not answer and may still use a buffer", "store", b.store.name, "operation", b.direction.name, "key", key.String(), "err", err)
		}
	case errors.Is(err, kv.ErrTimeout):
		if b.first(kv.ErrTimeout) {
			b.store.logger.Warn("storage did not answer in time", "store", b.store.name, "operation", b.direction.name, "key", key.String(), "err", err)
		}
	}
}

// first reports whether this is its first call with what.
func (b *batch) first(what any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logged == nil {
		b.logged = map[any]bool{}
	}
	was := b.logged[what]
	b.logged[what] = true
	return !was
}

// Flush is next's.
func (s *Store) Flush(ctx context.Context) error {
	err := s.Store.Flush(ctx)
	s.logDropped()
	return err
}

// Close is next's.
func (s *Store) Close() error {
	err := s.Store.Close()
	s.logDropped()
	return err
}

// logDropped logs how many blocks were dropped since its last call.
func (s *Store) logDropped() {
	dropped := s.Store.Stats().DroppedBlocks
	if n := dropped - s.dropped.Swap(dropped); n > 0 {
		s.logger.Warn("blocks dropped", "store", s.name, "blocks", n)
	}
}

// Stats is next's, with Timing.
func (s *Store) Stats() kv.Stats {
	stats := s.Store.Stats()
	stats.Timing = kv.Timing{
		Lookup:    s.lookups.Latency(),
		LoadBatch: s.loads.batchTime.Latency(), LoadShard: s.loads.shardTime.Latency(),
		SaveBatch: s.saves.batchTime.Latency(), SaveShard: s.saves.shardTime.Latency(),
		WaitingBatches: s.waiting.Load(),
		LoadingBatches: s.loads.batches.Load(), LoadingShards: s.loads.shards.Load(),
		SavingBatches: s.saves.batches.Load(), SavingShards: s.saves.shards.Load(),
	}
	return stats
}
