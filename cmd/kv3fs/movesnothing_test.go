package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// A benchmark of a daemon that answers reads and moves no byte ends with status 1 and says
// why: memory still has what was written from there, unless it is spoiled before each read.
func TestBenchesNoticeDaemonThatMovesNothing(t *testing.T) {
	skipWithoutFUSE(t)
	bin := movesNothing(t)
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if out, err := exec.Command(bin, "trace", "generate", "--requests", "40", "--out", trace).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	unchecked := filepath.Join(t.TempDir(), "unchecked.yaml")
	if err := os.WriteFile(unchecked, []byte("store_pipeline: Ds3fs\nchecksums: \"off\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, bin, t.TempDir())
	engine := func(args []string) []string { return append([]string{"bench", "engine"}, args...) }
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"replay":                     {s.replayArgs(trace, "--block-bytes", "64KiB"), "wrong bytes in"},
		"bench ring":                 {[]string{"bench", "ring", "--runs", "1", "--run-time", "50ms", "--no-fio", "--sizes", "4KiB", "--file-bytes", "16MiB"}, "wrong bytes read from file"},
		"bench store":                {[]string{"bench", "store", "--runs", "1", "--blocks", "8"}, "wrong bytes in block"},
		"bench engine random-twice":  {engine(tiny("random-twice", "--store", "Ds3fs")), "damaged: "},
		"bench engine ucm-table":     {engine(tiny("ucm-table", "--store", "Ds3fs")), "damaged: "},
		"bench engine shared-prefix": {engine(tiny("shared-prefix", "--store", "Ds3fs")), "damaged: "},
		"bench engine trace":         {engine(tiny("trace", trace, "--store", "Ds3fs", "--max-requests", "20")), "damaged: "},
		"bench engine, no checksums": {engine(tiny("random-twice", "--config", unchecked, "--mount", s.mount)), "wrong bytes in"},
	} {
		t.Run(name, func(t *testing.T) { notices(t, exec.Command(bin, c.args...), c.says) })
	}
}

// movesNothing builds such a daemon.
func movesNothing(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "kv3fs")
	if err := daemontest.Build(bin, "CGO_ENABLED=0", "-tags", "movesnothing"); err != nil {
		t.Fatal(err)
	}
	return bin
}

// notices checks that a command ends with status 1 and says this.
func notices(t *testing.T, cmd *exec.Cmd, says string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), says) {
		t.Errorf("ended with %v, without %q:\n%s", err, says, out)
	}
}

// The tests that run for long, of chains, page files and honest users, and those of memory and
// of a capacity, fail with such a daemon, and so does the benchmark of the Python package.
func TestSoaksNoticeDaemonThatMovesNothing(t *testing.T) {
	skipWithoutFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: some of them need root")
	}
	bin := movesNothing(t)
	for name, c := range map[string]struct {
		test string
		env  []string
		says string
	}{
		"blocksoak": {"TestKilledWriter/Ds3fs", nil, "was flushed and is lost"},
		"pagesoak":  {"TestDaemonKilled", []string{"KV3FS_SOAK=1s"}, "belongs to another"},
		"hogs":      {"TestHogs", []string{"KV3FS_SOAK=1s", "KV3FS_HOGS=none"}, "wrong"},
		"soak":      {"TestMemoryAfterLargeIov", nil, "was not read"},
		"capacity":  {"TestCapacityHolds/^passthrough$", nil, "gives other bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("go", "test", "-count=1", "-timeout=10m", "-run", c.test, "../../internal/test/"+name)
			cmd.Env = append(append(os.Environ(), "KV3FS_BINARY="+bin), c.env...)
			notices(t, cmd, c.says)
		})
	}
	t.Run("Python", func(t *testing.T) {
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Skip("NOT TESTED: there is no python3")
		}
		if out, err := exec.Command("make", "-s", "-C", "../../clients/c", "all", "tools").CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: the C library cannot be built: %v\n%s", err, out)
		}
		cmd := exec.Command(python, "../../clients/python/bench/bench.py", "--runs", "1", "--run-seconds", "0.1", "--file-mib", "8")
		cmd.Env = append(os.Environ(), "KV3FS_BINARY="+bin)
		notices(t, cmd, "wrong bytes in slot")
	})
}
