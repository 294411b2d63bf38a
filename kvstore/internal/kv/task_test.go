package kv

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

func batch(indices ...int) []Shard {
	shards := make([]Shard, len(indices))
	for i, index := range indices {
		shards[i] = Shard{Key: Key{byte(i)}, Index: index}
	}
	return shards
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestTaskIsDoneWhenAllIsSettled(t *testing.T) {
	task := NewTask(t.Context(), batch(0, 1, 0))
	task.Settle(1, ErrMiss)
	task.Settle(2, nil)
	if isClosed(task.Done()) || task.Context().Err() != nil {
		t.Error("done with a shard left")
	}
	if err, settled := task.Result(0); err != nil || settled {
		t.Errorf("an unsettled shard has the result %v", err)
	}
	task.Settle(0, ErrFull)
	if !isClosed(task.Done()) || task.Context().Err() == nil {
		t.Error("not done")
	}
	if err, settled := task.Result(1); err != ErrMiss || !settled {
		t.Errorf("result %v, %v", err, settled)
	}
	// The one that failed first, not the first of the batch.
	if err := task.Wait(t.Context()); err != ErrMiss {
		t.Errorf("Wait: %v", err)
	}
}

func TestTaskTellsOrder(t *testing.T) {
	task := NewTask(t.Context(), batch(0, 0, 0, 0))
	order := []int{2, 0, 3, 1}
	go func() {
		for _, i := range order {
			task.Settle(i, nil)
		}
	}()
	var got []int
	for i, err := range task.All() {
		if err != nil {
			t.Error(err)
		}
		got = append(got, i)
	}
	if !slices.Equal(got, order) {
		t.Errorf("order %v; settled in order %v", got, order)
	}
	for range task.All() {
		break // a caller may leave early
	}
}

func TestTaskTellsLayers(t *testing.T) {
	task := NewTask(t.Context(), batch(0, 1, 0, 1))
	first, second := task.Landed(0), task.Landed(1)
	task.Settle(0, nil)
	task.Settle(1, nil)
	if isClosed(first) || isClosed(second) {
		t.Error("a layer has landed of which a block is missing")
	}
	task.Settle(2, ErrMiss)
	if !isClosed(first) || isClosed(second) {
		t.Error("only the first layer is settled")
	}
	if !isClosed(task.Landed(0)) || !isClosed(task.Landed(7)) {
		t.Error("Landed, called late for a settled layer or one that is not in the batch, is not closed")
	}
	task.Settle(3, nil)
	<-second
}

func TestTaskTellsWhetherALayerMayBeUsed(t *testing.T) {
	task := NewTask(t.Context(), batch(0, 1, 0, 1, 2))
	want := func(layer int, want error) {
		t.Helper()
		if err := task.LandedErr(layer); err != want {
			t.Errorf("layer %d: %v; want %v", layer, err, want)
		}
	}
	want(0, ErrPending)
	task.Settle(0, nil)
	want(0, ErrPending)
	task.Settle(2, nil)
	want(0, nil)
	want(1, ErrPending)
	task.Settle(3, ErrFull)
	want(1, ErrFull) // known before the layer has landed
	task.Settle(1, ErrMiss)
	want(1, ErrFull)
	want(2, ErrPending)
	want(7, nil) // no shard of the batch failed
	want(-1, nil)
	task.Settle(4, nil)
	want(2, nil)
}

func TestTaskWaitsForBuffersAlsoWhenCancelled(t *testing.T) {
	task := NewTask(context.Background(), batch(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	go func() {
		<-task.Context().Done() // Wait has cancelled it
		task.Settle(0, task.Context().Err())
		task.Settle(1, nil)
	}()
	if err := task.Wait(ctx); !isClosed(task.Done()) || err != context.Canceled {
		t.Errorf("Wait returned %v, done: %v", err, isClosed(task.Done()))
	}
	// Wait does not hide the other error.
	task = NewTask(context.Background(), batch(0))
	go func() {
		<-task.Context().Done()
		task.Settle(0, ErrTimeout)
	}()
	if err := task.Wait(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrTimeout) {
		t.Errorf("Wait returned %v", err)
	}
}

// lastMoment is a context that has ended, but not before the batch has.
type lastMoment struct {
	context.Context
	settle func()
}

func (c lastMoment) Done() <-chan struct{} {
	c.settle()
	return c.Context.Done()
}

// A batch that was done before its waiter's context ended was not cancelled.
func TestTaskDoneWinsOverContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		task := NewTask(context.Background(), batch(0))
		task.Settle(0, nil)
		if err := task.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		task = NewTask(context.Background(), batch(0))
		if err := task.Wait(lastMoment{ctx, func() { task.Settle(0, nil) }}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTaskOfNothingIsDone(t *testing.T) {
	task := NewTask(t.Context(), nil)
	if !isClosed(task.Done()) || task.Context().Err() == nil || task.Err() != nil {
		t.Error("not done, though nothing is left")
	}
}

// Any number of goroutines may settle, watch, wait and cancel at once.
func TestTaskForManyGoroutines(t *testing.T) {
	const shards, layers, writers = 64, 8, 8
	indices := make([]int, shards)
	for i := range indices {
		indices[i] = i % layers
	}
	fate := func(i int) error {
		if i%5 == 0 {
			return ErrMiss
		}
		return nil
	}
	for range 20 {
		task := NewTask(t.Context(), batch(indices...))
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for i := w; i < shards; i += writers {
					task.Settle(i, fate(i))
				}
			})
			all.Go(func() {
				<-task.Landed(w)
				for i := w; i < shards; i += layers {
					if _, settled := task.Result(i); !settled {
						t.Errorf("layer %d has landed without shard %d", w, i)
					}
				}
			})
		}
		for range 3 {
			all.Go(func() {
				seen := map[int]bool{}
				for i, err := range task.All() {
					if again, settled := task.Result(i); seen[i] || err != fate(i) || err != again || !settled {
						t.Errorf("shard %d: %v, then %v", i, err, again)
					}
					seen[i] = true
				}
				if len(seen) != shards {
					t.Errorf("%d shards of %d", len(seen), shards)
				}
			})
			all.Go(func() {
				if err := task.Wait(context.Background()); err != ErrMiss || task.Context().Err() == nil {
					t.Errorf("Wait: %v", err)
				}
			})
			all.Go(task.Cancel)
		}
		all.Wait()
	}
}

// An observer sees each shard once, whether it was settled before or after the call of
// Observe, and all of them before the task is done.
func TestTaskIsObserved(t *testing.T) {
	const shards = 64
	for range 50 {
		task := NewTask(t.Context(), batch(make([]int, shards)...))
		var all sync.WaitGroup
		for w := range 4 {
			all.Go(func() {
				for i := w; i < shards; i += 4 {
					task.Settle(i, nil)
				}
			})
		}
		var mu sync.Mutex
		seen := map[int]int{}
		task.Observe(func(i int, err error) {
			mu.Lock()
			defer mu.Unlock()
			seen[i]++
		})
		<-task.Done()
		mu.Lock()
		for i := range shards {
			if seen[i] != 1 {
				t.Fatalf("shard %d was seen %d times", i, seen[i])
			}
		}
		mu.Unlock()
		all.Wait()
	}
}

func TestTaskRefusesToSettleTwice(t *testing.T) {
	task := NewTask(t.Context(), batch(0))
	task.Settle(0, nil)
	defer func() {
		if recover() == nil {
			t.Error("settled twice")
		}
	}()
	task.Settle(0, nil)
}
