package daemon

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// Of two hosts with a capacity over one directory, the one that keeps it says how much is in it; the other one does when
// that has gone.
func TestMetricsOfSharedKeeping(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	oldBlocks(t, dir, 0, 4)
	host := func(name string) *sharedKeeping {
		t.Helper()
		k, err := keepShared(dir, hostID{Identity: name, Host: name}, Keeping{Capacity: keeper.Limit{Bytes: 1 << 20}, Lease: 30 * time.Second}, slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.stop)
		return k
	}
	says := func(k *sharedKeeping) bool {
		t.Helper()
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(newKeeperMetrics(k.keeper))
		all, err := r.Gather()
		if err != nil {
			t.Error(err)
		}
		for _, is := range all {
			if is.GetName() == "kv3fs_keeper_limit_bytes" && is.GetMetric()[0].GetGauge().GetValue() != 1<<20 {
				t.Errorf("%v", is)
			}
			if !strings.HasPrefix(is.GetName(), "kv3fs_keeper_") {
				t.Errorf("%v", is)
			}
		}
		return len(all) > 0
	}
	first, second := host("one"), host("two")
	if !says(first) || says(second) || says(nil) {
		t.Errorf("says how much is there: the host that keeps the directory: %v, the one that stands by: %v, one without a capacity: %v", says(first), says(second), says(nil))
	}
	first.stop()
	for end := time.Now().Add(time.Minute); !says(second); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the second host does not keep the directory")
		}
	}
	if says(first) {
		t.Error("the first host goes on to say how much is there")
	}
}
