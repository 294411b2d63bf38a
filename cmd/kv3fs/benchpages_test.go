package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/pagesbench"
)

func TestBenchPages(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts services")
	}
	bin := binary(t)
	bench := func(args ...string) (stdout, stderr string, err error) {
		cmd := exec.Command(bin, append([]string{"bench", "pages", "--clients", "2", "--batch", "16", "--pages", "1024", "--runs", "1", "--run-time", "20ms"}, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		return out.String(), errs.String(), err
	}
	t.Run("starts services and leaves nothing behind", func(t *testing.T) {
		scratch := t.TempDir()
		stdout, stderr, err := bench("--scratch", scratch, "--no-reference", "--json")
		var r pagesbench.Report
		if err != nil || json.Unmarshal([]byte(stdout), &r) != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		checkJSON(t, "bench pages", stdout)
		if len(r.Protocols) != 2 {
			t.Fatalf("%+v", r)
		}
		for _, p := range r.Protocols {
			for _, c := range p.Rates {
				if c.Ours.Median <= 0 || c.Reference != nil {
					t.Errorf("%s: %+v", p.Name, c)
				}
			}
			if len(p.Rates) != 4 || len(p.Waits) != 3 || p.Full == nil || p.Full.RestartSeconds <= 0 || p.Full.Keys != 1024 {
				t.Errorf("%s: %+v", p.Name, p)
			}
		}
		if left, _ := os.ReadDir(scratch); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Run("refuses what makes no sense", func(t *testing.T) {
		for text, args := range map[string][]string{
			"too few":        {"--pages", "100"},
			"is not http://": {"--url", "localhost:18000"},
			"is not one of":  {"--protocols", "mooncake"},
		} {
			if _, stderr, err := bench(args...); err == nil || !strings.Contains(stderr, text) {
				t.Errorf("%v: %v: %s", args, err, stderr)
			}
		}
	})
}
