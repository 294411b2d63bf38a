package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/storebench"
)

func TestBenchStore(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	bench := func(args ...string) (stdout, stderr string, err error) {
		quick := []string{"bench", "store", "--io", "buffered", "--blocks", "8", "--block-bytes", "64KiB", "--depth", "4", "--keys", "16", "--index-blocks", "64", "--runs", "1", "--run-time", "1ms"}
		cmd := exec.Command(bin, append(quick, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		return out.String(), errs.String(), err
	}
	t.Run("starts a daemon and leaves nothing behind", func(t *testing.T) {
		scratch := t.TempDir()
		stdout, stderr, err := bench("--scratch", scratch, "--json")
		var r storebench.Report
		if err != nil || json.Unmarshal([]byte(stdout), &r) != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		checkJSON(t, "bench store", stdout)
		if len(r.Cold) == 0 || len(r.Lookups) == 0 || r.BlockBytes != 64<<10 || r.ShardBytes != 64<<10 {
			t.Errorf("%+v", r)
		}
		if r.Calls == nil && !strings.Contains(r.CallsSkipped, "strace") {
			t.Errorf("neither system calls nor a reason for their absence: %q", r.CallsSkipped)
		}
		if left, _ := os.ReadDir(scratch); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Run("prints a table", func(t *testing.T) {
		stdout, stderr, err := bench("--scratch", t.TempDir(), "--shard-bytes", "16KiB")
		if err != nil || !strings.Contains(stdout, "aim, for information") || !strings.Contains(stdout, "UCM's way") {
			t.Errorf("%v: %s%s", err, stdout, stderr)
		}
	})
	t.Run("refuses sizes that don't divide", func(t *testing.T) {
		if _, stderr, err := bench("--shard-bytes", "12KiB"); err == nil || !strings.Contains(stderr, "not a multiple") {
			t.Errorf("%v: %s", err, stderr)
		}
	})
}
