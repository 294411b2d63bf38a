package queue

import (
	"context"
	"errors"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

func TestTakeIsBounded(t *testing.T) {
	q := New()
	for _, n := range []int{5, 5, 30, 1} {
		q.Append(func(error) {}, [][]byte{make([]byte, n)})
	}
	for _, want := range []int{2, 1, 1, 0} {
		batch, closed := q.Take(10)
		if len(batch) != want || closed {
			t.Fatalf("%d writes, closed %t; want %d", len(batch), closed, want)
		}
	}
}

func TestGivenUpWritesAreNotTaken(t *testing.T) {
	q := New()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	outcomes := 0
	wait := q.Append(func(error) { outcomes++ }, [][]byte{{1}})
	q.Append(func(error) {}, [][]byte{{2}})
	if err := wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	batch, _ := q.Take(10)
	if len(batch) != 1 || batch[0].Recs[0][0] != 2 || outcomes != 1 {
		t.Fatalf("%+v, %d outcomes", batch, outcomes)
	}
}

func TestClosedQueueRefusesAndEmpties(t *testing.T) {
	q := New()
	q.Append(func(error) {}, [][]byte{{1}})
	if q.Close() || !q.Close() {
		t.Fatal("Close")
	}
	outcomes := 0
	wait := q.Append(func(error) { outcomes++ }, [][]byte{{2}})
	for range 2 {
		if err := wait(context.Background()); !errors.Is(err, pageservice.ErrClosed) {
			t.Fatal(err)
		}
	}
	if outcomes != 1 {
		t.Fatal(outcomes)
	}
	batch, closed := q.Take(10)
	if len(batch) != 1 || !closed {
		t.Fatal(len(batch), closed)
	}
	batch[0].Finish(nil)
}
