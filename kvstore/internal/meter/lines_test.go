package meter

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmlog"
)

func run(t *testing.T, do func() (*kv.Task, error)) {
	t.Helper()
	task, err := do()
	if err != nil {
		t.Fatal(err)
	}
	<-task.Done()
}

// Each batch has two lines: when it is given to the store, and when it is done.
func TestTasksAreLogged(t *testing.T) {
	for place, operations := range map[Place][2]string{Front: {"LOAD", "DUMP"}, Behind: {"Backend2Cache", "Cache2Backend"}} {
		var log strings.Builder
		next := fault.New(empty.New(layout), fault.Fault{Method: fault.Load, Where: func(k kv.Key, _ int) bool { return k[0] == 0 }, Err: kv.ErrTimeout})
		s := New(next, place, slog.New(ucmlog.NewHandler(&log, slog.LevelDebug)))
		run(t, func() (*kv.Task, error) { return s.Save(t.Context(), shardsOf(2)) })
		run(t, func() (*kv.Task, error) { return s.Load(t.Context(), shardsOf(3)) })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(t.Context(), shardsOf(1)); err == nil {
			t.Error("a closed store took a batch")
		}
		at := 0
		for _, want := range []string{
			"[UC][D] Empty task(1," + operations[1] + ",8,8192) dispatching. [",
			"[UC][D] Empty task(1," + operations[1] + ",8,8192) finished, cost ",
			"[UC][D] Empty task(2," + operations[0] + ",12,12288) dispatching. [",
			"[UC][D] Empty task(2," + operations[0] + ",12,12288) finished, cost ",
			"[UC][D] Empty task(3," + operations[0] + ",4,4096) dispatching. [",
			"[UC][D] Empty task(3," + operations[0] + ",4,4096) refused: ",
		} {
			n := strings.Index(log.String()[at:], want)
			if n < 0 {
				t.Errorf("no %q, or not in this order, in\n%s", want, log.String())
				continue
			}
			at += n
		}
	}
}

// The line of a task that is done counts what was a miss and what failed.
func TestTaskLinesCount(t *testing.T) {
	var log strings.Builder
	next := fault.New(empty.New(layout), fault.Fault{Method: fault.Load, Where: func(k kv.Key, _ int) bool { return k[0] == 0 }, Err: kv.ErrTimeout})
	s := New(next, Front, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer s.Close()
	run(t, func() (*kv.Task, error) { return s.Load(t.Context(), shardsOf(3)) })
	if !strings.Contains(log.String(), "task.missed=8 task.failed=4\n") {
		t.Error(log.String())
	}
}

// halfInMemory finds every block, every second of them in memory.
type halfInMemory struct{ *empty.Store }

func (halfInMemory) Lookup(_ context.Context, keys []kv.Key, found []bool) error {
	for i := range found {
		found[i] = keys[i][0]%3 != 2
	}
	return nil
}

func (halfInMemory) LookupPrefix(_ context.Context, keys []kv.Key) (int, error) {
	return len(keys) - 1, nil
}

func (halfInMemory) InMemory(keys []kv.Key) int { return len(keys) / 2 }

// Each lookup that a program makes has a line.
func TestRequestsAreLogged(t *testing.T) {
	keys := make([]kv.Key, 9)
	for i := range keys {
		keys[i][0] = byte(i)
	}
	var log strings.Builder
	logger := slog.New(ucmlog.NewHandler(&log, slog.LevelDebug))
	s := New(halfInMemory{empty.New(layout)}, Front, logger)
	for range 2 {
		if err := s.Lookup(t.Context(), keys, make([]bool, len(keys))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.LookupPrefix(kv.WithRequestID(t.Context(), "cmpl-7"), keys); err != nil {
		t.Fatal(err)
	}
	if _, err := New(empty.New(layout), Front, logger).LookupPrefix(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	if _, err := New(empty.New(layout), Behind, logger).LookupPrefix(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"[UC][D] request_id: 1, total_blocks_num: 9, hit memory: 3, hit external: 3 [",
		"[UC][D] request_id: 2, total_blocks_num: 9, hit memory: 3, hit external: 3 [",
		"[UC][D] request_id: cmpl-7, total_blocks_num: 9, hit memory: 4, hit external: 4 [",
		"[UC][D] request_id: 1, total_blocks_num: 9, hit memory: 0, hit external: 0 [",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in\n%s", want, log.String())
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 4 {
		t.Errorf("%d lines, want 4: a store behind a cache has no requests of its own\n%s", n, log.String())
	}
}

// At any other level nothing is spent on the lines: not one allocation more than a batch
// that nobody logs.
func TestLinesCostNothingUnlessWritten(t *testing.T) {
	shards, keys, found := shardsOf(4), make([]kv.Key, 4), make([]bool, 4)
	cost := func(s kv.Store) float64 {
		return testing.AllocsPerRun(200, func() {
			task, err := s.Load(t.Context(), shards)
			if err != nil {
				t.Fatal(err)
			}
			<-task.Done()
			if err := s.Lookup(t.Context(), keys, found); err != nil {
				t.Fatal(err)
			}
		})
	}
	bare := cost(empty.New(layout))
	for name, handler := range map[string]slog.Handler{
		"discarded": slog.DiscardHandler,
		"at info":   ucmlog.NewHandler(&strings.Builder{}, slog.LevelInfo),
	} {
		if n := cost(New(empty.New(layout), Front, slog.New(handler))); n > bare+2 { // the batch's measurements and their function
			t.Errorf("%s: %v allocations, %v without a meter", name, n, bare)
		}
	}
	if n := cost(New(empty.New(layout), Front, slog.New(ucmlog.NewHandler(&strings.Builder{}, slog.LevelDebug)))); n <= bare+2 {
		t.Errorf("at debug level %v allocations: the comparison compares nothing", n)
	}
}

func BenchmarkLoad(b *testing.B) {
	for name, handler := range map[string]slog.Handler{
		"discarded": slog.DiscardHandler,
		"at info":   ucmlog.NewHandler(&strings.Builder{}, slog.LevelInfo),
	} {
		b.Run(name, func(b *testing.B) {
			s, shards := New(empty.New(layout), Front, slog.New(handler)), shardsOf(4)
			b.ReportAllocs()
			for b.Loop() {
				task, err := s.Load(b.Context(), shards)
				if err != nil {
					b.Fatal(err)
				}
				<-task.Done()
			}
		})
	}
}
