package meter

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

var layout = kv.Layout{BlockBytes: 4096, ShardBytes: 1024}

func shardsOf(blocks int) (shards []kv.Shard) {
	for i := range 4 * blocks {
		shards = append(shards, kv.Shard{Key: kv.Key{byte(i / 4)}, Index: i % 4, Buf: make([]byte, layout.ShardBytes)})
	}
	return shards
}

func TestStore(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{
		Discards: true,
		Open: func(_ testing.TB, _ string, o storesuite.Options) kv.Store {
			return New(empty.New(o.Layout), Front, slog.New(slog.DiscardHandler))
		},
	})
}

// A batch counts as in flight until it is done. Then its time is counted.
func TestInFlight(t *testing.T) {
	hold := make(chan struct{})
	next := fault.New(empty.New(layout), fault.Fault{Method: fault.Load, Where: func(k kv.Key, _ int) bool { return k[0] == 1 }, Hold: hold})
	s := New(next, Front, slog.New(slog.DiscardHandler))
	defer s.Close()
	task, err := s.Load(t.Context(), shardsOf(2))
	if err != nil {
		t.Fatal(err)
	}
	if timing := s.Stats().Timing; timing.LoadingBatches != 1 || timing.LoadingShards < 4 || timing.SavingBatches != 0 || timing.WaitingBatches != 0 || timing.LoadBatch.Count != 0 {
		t.Errorf("%+v", timing)
	}
	time.Sleep(time.Millisecond)
	close(hold)
	<-task.Done()
	if timing := s.Stats().Timing; timing.LoadingBatches != 0 || timing.LoadingShards != 0 || timing.LoadBatch.Count != 1 || timing.LoadShard.Count != 8 || timing.LoadBatch.Sum < time.Millisecond {
		t.Errorf("%+v", timing)
	}
	if _, err := s.Load(t.Context(), nil); err == nil || s.Stats().Timing.LoadBatch.Count != 1 {
		t.Errorf("a batch that was refused is measured, or %v", err)
	}
}

// Each kind of failure is logged once for a batch. A miss is not logged.
func TestLog(t *testing.T) {
	damaged := func(key byte) error { return &kv.CorruptError{Key: kv.Key{key}, Where: "a page", What: "cut short"} }
	for name, c := range map[string]struct {
		faults []fault.Fault
		want   []string
	}{
		"misses": {nil, nil},
		"damage": {
			[]fault.Fault{
				{Method: fault.Load, Where: func(k kv.Key, _ int) bool { return k[0] == 0 }, Err: damaged(0)},
				{Method: fault.Load, Where: func(k kv.Key, _ int) bool { return k[0] == 1 }, Err: damaged(1)},
			},
			[]string{`WARN msg="damaged block" store=Empty key=0000`, `WARN msg="damaged block" store=Empty key=0100`},
		},
		"timeouts":  {[]fault.Fault{{Method: fault.Load, Err: kv.ErrTimeout}}, []string{`WARN msg="storage did not answer in time" store=Empty operation=load`}},
		"abandoned": {[]fault.Fault{{Method: fault.Load, Err: kv.Abandoned("a disk")}}, []string{`ERROR msg="storage did not answer and may still use a buffer" store=Empty operation=load`}},
		"others":    {[]fault.Fault{{Method: fault.Load, Err: errors.New("input/output error")}}, nil},
	} {
		var log strings.Builder
		s := New(fault.New(empty.New(layout), c.faults...), Front, slog.New(slog.NewTextHandler(&log, nil)))
		task, err := s.Load(t.Context(), shardsOf(3))
		if err != nil {
			t.Fatal(name, err)
		}
		<-task.Done()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if lines := strings.Count(log.String(), "\n"); lines != len(c.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", name, lines, len(c.want), log.String())
		}
		for _, want := range c.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, log.String())
			}
		}
	}
}

// dropping is a store that reports dropped blocks.
type dropping struct {
	*empty.Store
	dropped int64
}

func (d *dropping) Stats() kv.Stats {
	s := d.Store.Stats()
	s.DroppedBlocks = d.dropped
	return s
}

func TestDroppedBlocksAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	next := &dropping{Store: empty.New(layout)}
	s := New(next, Front, slog.New(slog.NewTextHandler(&log, nil)))
	for _, n := range []int64{0, 3, 3, 5} {
		next.dropped = n
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `msg="blocks dropped" store=Empty blocks=3`) || !strings.Contains(text, "blocks=2") {
		t.Error(text)
	}
}

func TestRegister(t *testing.T) {
	next := func() kv.Store { return fault.New(empty.New(layout)) }
	if _, ok := NewRegistrar(next(), Front, slog.Default()).(kv.Registrar); !ok {
		t.Error("Register is not passed on")
	}
	if _, ok := New(next(), Front, slog.Default()).(kv.Registrar); ok {
		t.Error("Register is passed on though New gains nothing from it")
	}
	if _, ok := NewRegistrar(empty.New(layout), Front, slog.Default()).(kv.Registrar); ok {
		t.Error("a store that registers nothing has Register")
	}
}
