package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/hostsbench"
)

// A host that has just joined computes nothing again that others have computed, and what it has
// loaded is then on its own disk.
func TestBenchHosts(t *testing.T) {
	bin := binary(t)
	dir := shortDir(t)
	html := filepath.Join(dir, "report.html")
	cmd := exec.Command(bin, "bench", "hosts", "--scratch", dir, "--hosts", "2", "--orders", "shuffled,grouped", "--model", "QwQ-32B",
		"--groups", "3", "--queries", "2", "--prompt-tokens", "1024", "--output-tokens", "2", "--concurrency", "2", "--engine-memory", "none",
		"--scale", "2048", "--time-scale", "20", "--read-time", "50ms", "--read-bytes", "32MiB", "--parts", "engine,reads", "--json", "--html", html, "--no-progress")
	var out, errs bytes.Buffer
	cmd.Env = append(os.Environ(), "KV3FS_HOSTS=/var/tmp/kv3fs-hosts") // of scripts/hosts
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s%s", err, &out, &errs)
	}
	var r hostsbench.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 6 || r.Groups != 3 || r.Queries != 2 || r.InputTokens != 1024+128 || r.Concurrent != 2 {
		t.Fatalf("%+v", r)
	}
	for i, row := range r.Rows {
		from := map[string]int64{}
		for _, tier := range row.Tiers {
			from[tier.Store] = tier.LoadedBytes
		}
		switch i % 3 {
		case 0:
			if row.Name != "store, warm" || row.Host != 1 {
				t.Errorf("%+v", row)
			}
		case 1: // 1024 of 1152 tokens are the prefix
			if row.Name != "store, cold start" || row.Host != 2 || row.RecomputedRatio != 0 || row.LostBlocks != 0 || row.HitRatio < 0.88 || from["Posix"] == 0 {
				t.Errorf("%+v", row)
			}
		case 2:
			if row.Name != "store, own disk" || row.Host != 2 || row.RecomputedRatio != 0 || row.LostBlocks != 0 || row.HitRatio < 0.88 || from["Segment"]+from["Posix"] == 0 {
				t.Errorf("%+v", row)
			}
		}
		if row.FullMs <= row.IdealMs && i%3 > 0 {
			t.Errorf("computing everything takes %v ms, the ideal %v ms", row.FullMs, row.IdealMs)
		}
	}
	if len(r.Reads) != 2 || r.Reads[1].Hosts != 2 || r.Reads[1].GBps <= 0 || r.Reads[1].WrongByte != 0 || r.Reads[1].FromNext != 0 || r.Reads[1].Bound < 1 {
		t.Errorf("%+v", r.Reads)
	}
	page, err := os.ReadFile(html)
	if err != nil || !bytes.Contains(page, []byte("store, cold start: ideal")) || !bytes.HasSuffix(bytes.TrimSpace(page), []byte("</html>")) {
		t.Errorf("%v, %.200s", err, page)
	}
	left, err := filepath.Glob(filepath.Join(dir, "kv3fs-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
}

// Mistakes are found before anything is started.
func TestBenchHostsMistakes(t *testing.T) {
	bin := binary(t)
	for want, args := range map[string][]string{
		"has no Segment in front":         {"--store", "Cache|Posix"},
		"names 2 directories for 3 hosts": {"--near", "/a,/b"},
		"the leader's first":              {"--pages-url", "http://127.0.0.1:1"},
		"their leader ended":              {"--failover-command", "true"},
		"two hosts have":                  {"--hosts", "2", "--near", "/a,/a"},
	} {
		out, err := exec.Command(bin, append([]string{"bench", "hosts", "--scratch", t.TempDir()}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, %s; want %q", args, err, out, want)
		}
	}
}
