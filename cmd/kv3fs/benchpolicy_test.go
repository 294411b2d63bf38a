package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/policybench"
)

func traceFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBenchPolicy(t *testing.T) {
	// Two prompts in turn: a cache of one of the two blocks serves LRU nothing.
	path := traceFile(t, strings.Repeat(`{"timestamp": 5, "hash_ids": [1]}
{"timestamp": 5, "hash_ids": [2]}
`, 10))
	status, out, errs := usage("bench", "policy", "--trace", path, "--capacity", "50%,2", "--json")
	var r policybench.Report
	if status != 0 || json.Unmarshal([]byte(out), &r) != nil {
		t.Fatalf("%d %s%s", status, out, errs)
	}
	checkJSON(t, "bench policy", out)
	if r.Trace != path || r.Requests != 20 || r.References != 20 || r.DistinctBlocks != 2 || r.UnlimitedRatio != 18./20 || len(r.Capacities) != 2 {
		t.Fatalf("%+v", r)
	}
	half, all := r.Capacities[0], r.Capacities[1]
	if half.Capacity != "50%" || half.Blocks != 1 || half.LRU != 0 || half.ToLRU != 0 || half.Optimum != 9./20 {
		t.Errorf("%+v", half)
	}
	for name, ratio := range map[string]float64{"kv3fs": all.Ours, "LRU": all.LRU, "FIFO": all.FIFO, "LFU": all.LFU, "S3-FIFO": all.S3FIFO, "optimum": all.Optimum} {
		if math.Abs(ratio-18./20) > 1e-9 {
			t.Errorf("%s serves %v with room for all", name, ratio)
		}
	}
	status, out, errs = usage("bench", "policy", "--trace", path)
	if status != 0 || !strings.Contains(out, "kv3fs/LRU at least 0.98") || strings.Count(out, "\n20%") != 2 {
		t.Errorf("%d %s%s", status, out, errs)
	}
}

func TestBenchPolicyRefusesWhatMakesNoSense(t *testing.T) {
	good := traceFile(t, `{"timestamp": 0, "hash_ids": [1, 2, 3]}`+"\n")
	for _, c := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"no trace", nil, exitUsage, "--trace"},
		{"no such file", []string{"--trace", good + ".gone"}, exitFailed, "no such file"},
		{"empty", []string{"--trace", traceFile(t, "")}, exitFailed, "no blocks in 0 requests"},
		{"only empty prompts", []string{"--trace", traceFile(t, `{"timestamp": 0, "hash_ids": []}`)}, exitFailed, "no blocks in 1 requests"},
		{"no hash_ids", []string{"--trace", traceFile(t, `{"timestamp": 0, "input_length": 5}`)}, exitFailed, `:1: no field "hash_ids"`},
		{"no timestamp", []string{"--trace", traceFile(t, `{"hash_ids": [1]}`)}, exitFailed, `:1: no field "timestamp"`},
		{"time goes back", []string{"--trace", traceFile(t, "{\"timestamp\": 2, \"hash_ids\": [1]}\n{\"timestamp\": 1, \"hash_ids\": [1]}")}, exitFailed, "sort the trace"},
		{"no JSON", []string{"--trace", traceFile(t, "time,blocks\n1,2\n")}, exitFailed, ":1: line starts with"},
		{"a directory", []string{"--trace", t.TempDir()}, exitFailed, "is a directory"},
		{"two traces", []string{"--trace", good, "--trace", good}, exitUsage, "--trace is given 2 times"},
		{"capacity twice", []string{"--trace", good, "--capacity", "5%,5%"}, exitUsage, "capacity 5% is given twice"},
		{"capacity in two flags", []string{"--trace", good, "--capacity", "5%", "--capacity", "5%"}, exitUsage, "capacity 5% is given twice"},
		{"capacity of nothing", []string{"--trace", good, "--capacity", "0%"}, exitUsage, `a capacity of "0%"`},
		{"capacity of more than all", []string{"--trace", good, "--capacity", "101%"}, exitUsage, `a capacity of "101%"`},
		{"capacity of no number", []string{"--trace", good, "--capacity", "NaN%"}, exitUsage, `a capacity of "NaN%"`},
		{"capacity in bytes", []string{"--trace", good, "--capacity", "10GiB"}, exitUsage, "or a number of blocks"},
		{"negative capacity", []string{"--trace", good, "--capacity=-3"}, exitUsage, `a capacity of "-3"`},
		{"capacity beyond the trace", []string{"--trace", good, "--capacity", "4"}, exitFailed, "the trace has only 3 different ones"},
	} {
		status, out, errs := usage(append([]string{"bench", "policy"}, c.args...)...)
		if status != c.status || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%s: %d %s%s; want %d, %s", c.name, status, out, errs, c.status, c.want)
		}
	}
}
