package main

import (
	"errors"
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
	bin := filepath.Join(t.TempDir(), "kv3fs")
	if err := daemontest.Build(bin, "CGO_ENABLED=0", "-tags", "movesnothing"); err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if out, err := exec.Command(bin, "trace", "generate", "--requests", "40", "--out", trace).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := serve(t, bin, t.TempDir())
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"replay":       {s.replayArgs(trace, "--block-bytes", "64KiB"), "wrong bytes in"},
		"bench ring":   {[]string{"bench", "ring", "--runs", "1", "--run-time", "50ms", "--no-fio", "--sizes", "4KiB", "--file-bytes", "16MiB"}, "wrong bytes read from file"},
		"bench store":  {[]string{"bench", "store", "--runs", "1", "--blocks", "8"}, "wrong bytes in block"},
		"bench engine": {[]string{"bench", "engine", "random-twice", "--store", "Ds3fs", "--scale", "4096", "--prompts", "2", "--prompt-tokens", "1280"}, "damaged: "},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(bin, c.args...).CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), c.says) {
				t.Errorf("ended with %v, without %q:\n%s", err, c.says, out)
			}
		})
	}
}
