package fault_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

var layout = kv.Layout{BlockBytes: 64, ShardBytes: 16}

// With no faults but delays it passes the suite.
func TestStore(t *testing.T) {
	for name, faults := range map[string][]fault.Fault{
		"none":       nil,
		"some delay": {{Method: fault.Load, Chance: 0.05, Delay: 1}, {Method: fault.Save, Chance: 0.05, Delay: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			storesuite.Run(t, storesuite.Subject{
				Open: func(t testing.TB, _ string, o storesuite.Options) kv.Store {
					next, err := cache.New(empty.New(o.Layout), cache.Options{CapacityBytes: 64 << 20, Namespace: o.Namespace})
					if err != nil {
						t.Fatal(err)
					}
					return fault.New(next, faults...)
				},
			})
		})
	}
}

// blocks makes shards of so many blocks, four each.
func blocks(n int) []kv.Shard {
	var keys []kv.Key
	var bufs [][]byte
	for i := range n {
		keys, bufs = append(keys, kv.Key{byte(i)}), append(bufs, make([]byte, layout.BlockBytes))
	}
	return layout.ByBlock(keys, bufs)
}

// results saves or loads, and returns each shard's error.
func results(t *testing.T, do func(context.Context, []kv.Shard) (*kv.Task, error), shards []kv.Shard) []error {
	t.Helper()
	task, err := do(t.Context(), shards)
	if err != nil {
		t.Fatal(err)
	}
	_ = task.Wait(t.Context())
	all := make([]error, task.Len())
	for i := range all {
		all[i], _ = task.Result(i)
	}
	return all
}

func TestTheNthFails(t *testing.T) {
	s := fault.New(empty.New(layout), fault.Fault{Method: fault.Save, Skip: 3, Count: 2, Err: kv.ErrFull})
	defer s.Close()
	for i, err := range results(t, s.Save, blocks(2)) {
		if failed := errors.Is(err, kv.ErrFull); failed != (i == 3 || i == 4) {
			t.Errorf("shard %d: %v", i, err)
		}
	}
	if n := s.Stats().SavedShards; n != 6 || !slices.Equal(s.Hits(), []int{2}) {
		t.Errorf("%d shards came through, %v hits", n, s.Hits())
	}
	s.Set()
	if err := errors.Join(results(t, s.Save, blocks(2))...); err != nil {
		t.Errorf("after the fault: %v", err)
	}
}

func TestWhere(t *testing.T) {
	s := fault.New(empty.New(layout), fault.Fault{
		Method: fault.Save, Err: kv.ErrTimeout,
		Where: func(k kv.Key, index int) bool { return k == kv.Key{1} && index == 2 },
	})
	defer s.Close()
	for i, err := range results(t, s.Save, blocks(3)) {
		if failed := errors.Is(err, kv.ErrTimeout); failed != (i == 6) {
			t.Errorf("shard %d: %v", i, err)
		}
	}
}

func TestChanceIsSeeded(t *testing.T) {
	run := func(seed uint64) (failed []int) {
		s := fault.New(empty.New(layout), fault.Fault{Method: fault.Save, Chance: 0.3, Seed: seed, Err: kv.ErrFull})
		defer s.Close()
		for i, err := range results(t, s.Save, blocks(50)) {
			if err != nil {
				failed = append(failed, i)
			}
		}
		return failed
	}
	first := run(1)
	if !slices.Equal(first, run(1)) {
		t.Error("one seed, two outcomes")
	}
	if slices.Equal(first, run(2)) {
		t.Error("two seeds, one outcome")
	}
	if len(first) < 30 || len(first) > 90 {
		t.Errorf("%d of 200 failed", len(first))
	}
}

// full is a store that has every block, of zeros.
type full struct{ *empty.Store }

func (f full) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	for _, s := range shards {
		clear(s.Buf)
	}
	return f.Save(ctx, shards)
}

func (f full) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	for i := range found {
		found[i] = true
	}
	return nil
}

func (f full) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) { return len(keys), nil }

func TestFlip(t *testing.T) {
	s := fault.New(full{empty.New(layout)},
		fault.Fault{Method: fault.Load, Skip: 5, Count: 1, Flip: true},
		fault.Fault{Method: fault.Lookup, Skip: 1, Count: 1, Flip: true})
	defer s.Close()
	shards := blocks(2)
	if err := errors.Join(results(t, s.Load, shards)...); err != nil {
		t.Fatal(err)
	}
	for i, shard := range shards {
		zeros := bytes.Count(shard.Buf, []byte{0})
		if want := len(shard.Buf); i == 5 && zeros != want-1 || i != 5 && zeros != want {
			t.Errorf("shard %d: %x", i, shard.Buf)
		}
	}
	found := make([]bool, 3)
	if err := s.Lookup(t.Context(), make([]kv.Key, 3), found); err != nil || !slices.Equal(found, []bool{true, false, true}) {
		t.Error(found, err)
	}
}

func TestDrop(t *testing.T) {
	s := fault.New(full{empty.New(layout)},
		fault.Fault{Method: fault.Save, Count: 2, Drop: true},
		fault.Fault{Method: fault.Lookup, Count: 1, Drop: true},
		fault.Fault{Method: fault.LookupPrefix, Count: 1, Drop: true},
		fault.Fault{Method: fault.Flush, Err: kv.ErrTimeout})
	defer s.Close()
	if err := errors.Join(results(t, s.Save, blocks(1))...); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().SavedShards; n != 2 {
		t.Errorf("%d shards came through", n)
	}
	found := []bool{true}
	if err := s.Lookup(t.Context(), make([]kv.Key, 1), found); err != nil || found[0] {
		t.Error(found, err)
	}
	if n, err := s.LookupPrefix(t.Context(), make([]kv.Key, 2)); err != nil || n != 0 {
		t.Error(n, err)
	}
	if n, err := s.LookupPrefix(t.Context(), make([]kv.Key, 2)); err != nil || n != 2 {
		t.Error(n, err)
	}
	if err := s.Flush(t.Context()); !errors.Is(err, kv.ErrTimeout) {
		t.Error(err)
	}
}

// A held call goes on when it is released, and ends with its batch or the store.
func TestHold(t *testing.T) {
	release := make(chan struct{})
	s := fault.New(empty.New(layout), fault.Fault{Method: fault.Save, Skip: 1, Hold: release})
	begin := func() *kv.Task {
		task, err := s.Save(t.Context(), blocks(1))
		if err != nil {
			t.Fatal(err)
		}
		return task
	}
	first := begin()
	for i, err := range first.All() {
		if i != 0 || err != nil {
			t.Fatal(i, err)
		}
		break
	}
	if _, settled := first.Result(1); settled {
		t.Error("it is not held")
	}
	cancelled := begin()
	cancelled.Cancel()
	<-cancelled.Done()
	if err := cancelled.Err(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(release)
	<-first.Done()
	if err := first.Err(); err != nil {
		t.Error(err)
	}
	s.Set(fault.Fault{Method: fault.Save, Hold: make(chan struct{})}, fault.Fault{Method: fault.Lookup, Delay: time.Hour},
		fault.Fault{Method: fault.Close, Err: errors.New("the disk is gone")})
	ended := begin()
	looked := make(chan error)
	go func() { looked <- s.Lookup(context.Background(), make([]kv.Key, 1), make([]bool, 1)) }()
	if err := s.Close(); err == nil || err.Error() != "the disk is gone" {
		t.Error(err)
	}
	<-ended.Done()
	if err := ended.Err(); !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
	if err := <-looked; !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
}

// shelf has three keys and records which are deleted.
type shelf struct {
	*empty.Store
	deleted []kv.Key
}

func (s *shelf) Delete(_ context.Context, keys []kv.Key) error {
	s.deleted = append(s.deleted, keys...)
	return nil
}

func (s *shelf) Keys(context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		_ = yield(kv.Key{1}, nil) && yield(kv.Key{2}, nil) && yield(kv.Key{3}, nil)
	}
}

func TestDeleteAndKeys(t *testing.T) {
	next := &shelf{Store: empty.New(layout)}
	s := fault.New(next)
	defer s.Close()
	keys := func() (all []kv.Key, failed error) {
		for k, err := range s.Keys(t.Context()) {
			if err != nil {
				failed = err
				continue
			}
			all = append(all, k)
		}
		return all, failed
	}
	if all, err := keys(); err != nil || !slices.Equal(all, []kv.Key{{1}, {2}, {3}}) {
		t.Error(all, err)
	}
	s.Set(fault.Fault{Method: fault.Keys, Skip: 1, Count: 1, Drop: true}, fault.Fault{Method: fault.Delete, Count: 1, Drop: true})
	if all, err := keys(); err != nil || !slices.Equal(all, []kv.Key{{1}, {3}}) {
		t.Error(all, err)
	}
	if err := s.Delete(t.Context(), []kv.Key{{1}, {2}}); err != nil || !slices.Equal(next.deleted, []kv.Key{{2}}) {
		t.Error(next.deleted, err)
	}
	s.Set(fault.Fault{Method: fault.Keys, Skip: 1, Err: kv.ErrTimeout}, fault.Fault{Method: fault.Delete, Skip: 1, Err: kv.ErrTimeout})
	if all, err := keys(); !errors.Is(err, kv.ErrTimeout) || !slices.Equal(all, []kv.Key{{1}}) {
		t.Error(all, err)
	}
	if err := s.Delete(t.Context(), []kv.Key{{1}, {2}}); !errors.Is(err, kv.ErrTimeout) || len(next.deleted) != 1 {
		t.Error(next.deleted, err)
	}
}
