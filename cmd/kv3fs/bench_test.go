package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/ringbench"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

func TestBenchRing(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	quick := []string{"bench", "ring", "--sizes", "4k,256KiB", "--depth", "8", "--rings", "2", "--runs", "2", "--run-time", "20ms", "--file-bytes", "8MiB"}
	bench := func(t *testing.T, args ...string) (stdout, stderr string, err error) {
		cmd := exec.Command(bin, append(quick, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		return out.String(), errs.String(), err
	}
	t.Run("starts a daemon and leaves nothing behind", func(t *testing.T) {
		scratch := t.TempDir()
		stdout, stderr, err := bench(t, "--scratch", scratch, "--json")
		var r ringbench.Report
		if err != nil || json.Unmarshal([]byte(stdout), &r) != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		checkJSON(t, "bench ring", stdout)
		if len(r.Cases) != 4 || !r.Started {
			t.Fatalf("%+v", r)
		}
		for _, c := range r.Cases {
			if c.Ring.Median <= 0 || c.Mount.Median <= 0 || c.Plain.Median <= 0 || c.RingToPlain <= 0 || c.Ring.Min > c.Ring.Max {
				t.Errorf("%+v", c)
			}
			if want := map[int64]int{4 << 10: 2, 256 << 10: 16}[c.SizeBytes]; c.Threads != want {
				t.Errorf("%d threads for %d bytes", c.Threads, c.SizeBytes)
			}
		}
		if r.Setup.RingMs.Median <= 0 {
			t.Errorf("%+v", r.Setup)
		}
		if left, _ := os.ReadDir(scratch); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Run("compares what it reads with checksums", func(t *testing.T) {
		scratch := t.TempDir()
		if why := integrity.Supported(scratch); why != "" {
			t.Skip(why)
		}
		stdout, stderr, err := bench(t, "--scratch", scratch, "--checksums", "--no-fio", "--json")
		var r ringbench.Report
		if err != nil || json.Unmarshal([]byte(stdout), &r) != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		checkJSON(t, "bench ring", stdout)
		for _, c := range r.Cases {
			want := map[bool]float64{c.SizeBytes >= integrity.RangeBytes: 1}[true]
			switch {
			case c.Op == "write" && c.Compared != nil, c.Op == "read" && (c.Compared == nil || *c.Compared != want):
				t.Errorf("%s of %d bytes: compared %v, want %v", c.Op, c.SizeBytes, c.Compared, want)
			}
		}
	})
	t.Run("reads the metrics meanwhile", func(t *testing.T) {
		stdout, stderr, err := bench(t, "--scratch", t.TempDir(), "--scrape", "--no-fio", "--json")
		var r ringbench.Report
		if err != nil || json.Unmarshal([]byte(stdout), &r) != nil || len(r.Cases) == 0 {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		checkJSON(t, "bench ring", stdout)
		for _, c := range r.Cases {
			if c.Scraped == nil || c.Scraped.Median <= 0 || c.ScrapedToRing <= 0 {
				t.Errorf("%s of %d bytes: scraped %+v, %v", c.Op, c.SizeBytes, c.Scraped, c.ScrapedToRing)
			}
		}
	})
	t.Run("uses a running daemon", func(t *testing.T) {
		s := serve(t, bin, t.TempDir())
		stdout, stderr, err := bench(t, "--data", s.data, "--mount", s.mount, "--no-fio")
		if err != nil || !strings.HasPrefix(stdout, "kv3fs "+version()) || !strings.Contains(stdout, "\nkv3fs bench ring --sizes 4k,256KiB ") || !strings.Contains(stdout, "Warning: medians of 2 runs") ||
			!strings.Contains(stdout, "ring/plain") || strings.Contains(stdout, "io_uring  ") {
			t.Errorf("%v: %s%s", err, stdout, stderr)
		}
		if left, _ := filepath.Glob(filepath.Join(s.data, "kv3fs-bench-*")); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		other := t.TempDir()
		if _, stderr, err := bench(t, "--data", other, "--mount", s.mount); err == nil || !strings.Contains(stderr, "--data must be the data directory of the daemon") {
			t.Errorf("%v: %s", err, stderr)
		}
		if left, _ := os.ReadDir(s.mount); len(left) != 1 { // 3fs-virt
			t.Errorf("left behind: %v", left)
		}
	})
	t.Run("refuses half a daemon and files that are too small", func(t *testing.T) {
		if _, stderr, err := bench(t, "--data", t.TempDir()); err == nil || !strings.Contains(stderr, "both --data and --mount") {
			t.Errorf("%v: %s", err, stderr)
		}
		if _, stderr, err := bench(t, "--sizes", "4MiB"); err == nil || !strings.Contains(stderr, "--file-bytes 32.0 MiB") {
			t.Errorf("%v: %s", err, stderr)
		}
	})
}
