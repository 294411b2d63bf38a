package kvstore

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestCollector(t *testing.T) {
	s := openTest(t, "Cache|Posix", nil)
	blocks := testKeys(3)
	save(t, s, blocks...)
	if n, err := s.LookupPrefix(t.Context(), append(blocks, Key{9})); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(s, prometheus.Labels{"model": "tiny"}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	value := map[string]float64{}
	for _, f := range families {
		if len(f.GetHelp()) < 10 || !strings.HasPrefix(f.GetName(), "kv3fs_kvstore_") {
			t.Errorf("%s: %q", f.GetName(), f.GetHelp())
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["model"] != "tiny" {
				t.Errorf("%s has the labels %v", f.GetName(), labels)
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				v = float64(h.GetSampleCount())
				if n := len(h.GetBucket()); n != LatencyBuckets-1 {
					t.Errorf("%s has %d buckets", f.GetName(), n)
				}
			}
			value[strings.TrimPrefix(f.GetName(), "kv3fs_kvstore_")+" "+labels["store"]] = v
		}
	}
	for name, want := range map[string]float64{
		"keys_looked_up_total Cache": 4, "keys_found_total Cache": 3, "saved_shards_total Cache": 6,
		"save_batch_seconds Cache": 1, "save_shard_seconds Cache": 6, "lookup_seconds Cache": 1,
		"saved_shards_total Posix": 6, "save_shard_seconds Posix": 6, "waiting_batches Cache": 0, "saving_shards Posix": 0,
		"blocks Cache": 3,
	} {
		if got, ok := value[name]; !ok || got != want {
			t.Errorf("%s is %v (%t), want %v", name, got, ok, want)
		}
	}
	if _, ok := value["blocks Posix"]; ok {
		t.Error("Posix does not know how many blocks it has, and a number is given")
	}
}
