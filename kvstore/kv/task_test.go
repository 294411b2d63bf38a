package kv

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func batch(indices ...int) []Shard {
	shards := make([]Shard, len(indices))
	for i, index := range indices {
		shards[i] = Shard{Key{byte(i)}, index, nil}
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
		t.Error("asked later, a layer that is settled, or not in the batch, has not landed")
	}
	task.Settle(3, nil)
	<-second
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
	err := task.Wait(ctx)
	if !isClosed(task.Done()) || !errors.Is(err, context.Canceled) {
		t.Errorf("Wait returned %v, done: %v", err, isClosed(task.Done()))
	}
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
