package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
)

// benchEngine runs the benchmark and returns its output.
func benchEngine(t *testing.T, bin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.Command(bin, append([]string{"bench", "engine"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// tiny makes a workload, the first argument, short.
func tiny(args ...string) []string {
	args = append(args, "--scale", "2048", "--time-scale", "20", "--models", "QwQ-32B", "--concurrency", "2",
		"--engine-memory", "none", "--output-tokens", "2")
	switch args[0] {
	case "ucm-table":
		args = append(args, "--prompt-tokens", "1000", "--runs", "1")
	case "random-twice":
		args = append(args, "--prompt-tokens", "1000", "--prompts", "3")
	case "shared-prefix":
		args = append(args, "--prompt-tokens", "1000", "--groups", "3", "--queries", "2")
	}
	return args
}

// shortDir returns a directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kv3fs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func engineReport(t *testing.T, stdout, stderr string, err error) enginebench.Report {
	t.Helper()
	var r enginebench.Report
	if err != nil || json.Unmarshal([]byte(stdout), &r) != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	checkJSON(t, "bench engine", stdout)
	return r
}

// bench engine's blocks hold what plan counts: with fewer KV heads than ranks, with as
// many, with more, and with MLA.
func TestBenchEngineCountsAsPlan(t *testing.T) {
	bin := binary(t)
	for _, c := range []struct{ model, hardware string }{
		{"Qwen3-30B-A3B", "8xH20"}, {"Llama-3.1-70B", "8xH100"}, {"QwQ-32B", "2xH100"}, {"DeepSeek-R1", "8xH20"},
	} {
		_, out, errs := planned("--model", c.model, "--gpu", c.hardware, "--json")
		var p plan
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Fatal(err, errs)
		}
		args := tiny("ucm-table", "--store", "Posix", "--scratch", t.TempDir(), "--json")
		args[slices.Index(args, "QwQ-32B")] = c.model + "@" + c.hardware
		stdout, stderr, err := benchEngine(t, bin, args...)
		r := engineReport(t, stdout, stderr, err)
		if got, want := r.Rows[0].BlockBytes*r.Scale, p.InstanceBytes*int64(r.BlockTokens); got != want || want == 0 || r.Rows[0].Hardware != c.hardware {
			t.Errorf("%s on %s: blocks of %d bytes, and plan counts %d", c.model, r.Rows[0].Hardware, got, want)
		}
	}
}

func TestBenchEngine(t *testing.T) {
	bin := binary(t)
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if out, err := exec.Command(bin, "trace", "generate", "--requests", "20", "--out", trace).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Run("every workload, and nothing is left behind", func(t *testing.T) {
		for _, c := range []struct {
			args []string
			rows []string
		}{
			{[]string{"ucm-table"}, []string{""}},
			{[]string{"random-twice"}, []string{"first run", "second run"}},
			{[]string{"shared-prefix"}, []string{"store, warm", "store, cold start"}},
			{[]string{"trace", trace}, []string{"trace"}},
		} {
			scratch := t.TempDir()
			html := filepath.Join(t.TempDir(), "report.html")
			stdout, stderr, err := benchEngine(t, bin, tiny(append(c.args, "--store", "Segment", "--scratch", scratch, "--json", "--html", html)...)...)
			r := engineReport(t, stdout, stderr, err)
			var names []string
			for _, row := range r.Rows {
				names = append(names, row.Name)
				if row.MeasuredMs <= 0 || row.IdealMs <= 0 || row.LostBlocks != 0 || row.FailedSaves != 0 {
					t.Errorf("%s: %+v", c.args[0], row)
				}
			}
			if !slices.Equal(names, c.rows) {
				t.Errorf("%s has rows %q", c.args[0], names)
			}
			if last := r.Rows[len(r.Rows)-1]; last.HitTokens == 0 {
				t.Errorf("%s: nothing was found: %+v", c.args[0], last)
			}
			if page, err := os.ReadFile(html); err != nil || !strings.Contains(string(page), "</html>") {
				t.Errorf("%s: no page: %v", c.args[0], err)
			}
			if left, _ := os.ReadDir(scratch); len(left) != 0 {
				t.Errorf("%s left behind: %v", c.args[0], left)
			}
		}
	})
	t.Run("a chain over a daemon of its own", func(t *testing.T) {
		skipWithoutFUSE(t)
		scratch := t.TempDir()
		stdout, stderr, err := benchEngine(t, bin, tiny("shared-prefix", "--store", "Cache|Ds3fs", "--scratch", scratch, "--json")...)
		r := engineReport(t, stdout, stderr, err)
		if len(r.Rows) != 2 || !r.StartedDaemon {
			t.Fatalf("%+v", r)
		}
		// The prefix's seven whole blocks, in each of six queries.
		if cold := r.Rows[1]; cold.HitTokens != 6*7*128 {
			t.Errorf("%d tokens hit on the cold node", cold.HitTokens)
		}
		if left, _ := os.ReadDir(scratch); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Run("a chain over a page service of its own", func(t *testing.T) {
		scratch, temp := t.TempDir(), shortDir(t)
		t.Setenv("TMPDIR", temp) // where the socket is
		stdout, stderr, err := benchEngine(t, bin, tiny("shared-prefix", "--store", "Cache|Pages", "--scratch", scratch, "--json")...)
		r := engineReport(t, stdout, stderr, err)
		if len(r.Rows) != 2 || r.Rows[1].HitTokens != 6*7*128 {
			t.Errorf("%+v", r)
		}
		for _, dir := range []string{scratch, temp} {
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	})
	t.Run("a running page service", func(t *testing.T) {
		url := "unix:" + filepath.Join(shortDir(t), "pages")
		runUntil(t, bin, "serving pages", "pages", "serve", "--data", t.TempDir(), "--listen", url)
		stdout, stderr, err := benchEngine(t, bin, tiny("shared-prefix", "--store", "Pages", "--pages-url", url, "--scratch", t.TempDir(), "--json")...)
		if r := engineReport(t, stdout, stderr, err); len(r.Rows) != 2 || r.Rows[1].HitTokens != 6*7*128 {
			t.Errorf("%+v", r)
		}
		if stat, err := exec.Command(bin, "pages", "stat", "--url", url).CombinedOutput(); err != nil || !strings.Contains(string(stat), "file-") {
			t.Errorf("it was not used: %v: %s", err, stat)
		}
	})
	t.Run("a running daemon, and a table", func(t *testing.T) {
		skipWithoutFUSE(t)
		s := serve(t, bin, t.TempDir())
		stdout, stderr, err := benchEngine(t, bin, tiny("ucm-table", "--store", "Ds3fs", "--mount", s.mount)...)
		if err != nil || !strings.Contains(stdout, "of ideal") || !strings.Contains(stdout, s.mount) || !strings.Contains(stdout, "76.8%") {
			t.Errorf("%v: %s%s", err, stdout, stderr)
		}
	})
	t.Run("blocks stay in a directory that was given", func(t *testing.T) {
		for _, store := range []string{"Segment", "Pages"} {
			dir := filepath.Join(t.TempDir(), "kv")
			for i, want := range []bool{false, true} {
				stdout, stderr, err := benchEngine(t, bin, tiny("trace", trace, "--store", store, "--dir", dir, "--json", "--max-requests", "1")...)
				if r := engineReport(t, stdout, stderr, err); (r.Rows[0].HitTokens > 0) != want {
					t.Errorf("%s, run %d: %+v", store, i+1, r.Rows[0])
				}
			}
		}
	})
	t.Run("damaged blocks", func(t *testing.T) {
		dir := t.TempDir()
		args := tiny("trace", trace, "--store", "Posix", "--dir", dir, "--json", "--max-requests", "2")
		stdout, stderr, err := benchEngine(t, bin, args...)
		engineReport(t, stdout, stderr, err)
		blocks, _ := filepath.Glob(filepath.Join(dir, "???", "*"))
		if len(blocks) == 0 {
			t.Fatal("no blocks")
		}
		for _, path := range blocks {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			content[len(content)/2] ^= 4
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		unchecked := filepath.Join(t.TempDir(), "chain.yaml")
		if err := os.WriteFile(unchecked, []byte("store_pipeline: Posix\nchecksums: \"off\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, err = benchEngine(t, bin, append(args, "--config", unchecked)...)
		if err == nil || !strings.Contains(stderr, "wrong bytes in") || strings.Contains(stdout, `"wrong_bytes": 0`) {
			t.Errorf("wrong bytes were not reported: %v: %s%s", err, stdout, stderr)
		}
		// A store with checksums treats them as misses, and the engine recomputes them.
		stdout, stderr, err = benchEngine(t, bin, args...)
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr, "damaged: ") {
			t.Errorf("lost blocks were not reported: %v: %s", err, stderr)
		}
		if r := engineReport(t, stdout, stderr, nil); r.Rows[0].LostBlocks == 0 {
			t.Errorf("%+v", r.Rows[0])
		}
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		scratch := t.TempDir()
		cmd := exec.Command(bin, "bench", "engine", "shared-prefix", "--store", "Segment", "--scratch", scratch, "--scale", "2048", "--groups", "20", "--no-progress")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			if inside, _ := filepath.Glob(filepath.Join(scratch, "*", "*")); len(inside) > 0 {
				break // the store is open
			}
			if time.Now().After(deadline) {
				t.Fatal("no store was opened")
			}
			time.Sleep(5 * time.Millisecond)
		}
		cmd.Process.Signal(syscall.SIGINT)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(out.String(), "interrupted") {
			t.Errorf("status %d: %s%s", code, out.String(), errs.String())
		}
		if left, _ := os.ReadDir(scratch); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Run("what makes no sense", func(t *testing.T) {
		for text, args := range map[string][]string{
			"did you mean ucm-table?":  {"ucm-tables"},
			"similar names: QwQ-32B":   {"ucm-table", "--models", "QwQ-33B"},
			"trace FILE":               {"trace"},
			"takes no file":            {"random-twice", trace},
			"no such file":             {"trace", trace + "x"},
			"Ds3fs":                    {"ucm-table", "--store", "Cache|D3fs"},
			"/nonexistent":             {"ucm-table", "--store", "Ds3fs", "--mount", "/nonexistent/3fs"},
			"or none":                  {"ucm-table", "--bandwidth", "fast"},
			"--html":                   {"ucm-table", "--html", "/nonexistent/page.html"},
			"is a directory":           {"ucm-table", "--html", t.TempDir()},
			"does not divide":          {"ucm-table", "--scale", "1000"},
			"is not one of layers":     {"ucm-table", "--load", "blocks"},
			"it must be 1 to 1024":     {"ucm-table", "--concurrency", "0"},
			"--prompts: 0 is out of":   {"random-twice", "--prompts", "0"},
			"--seed: 0 is out of":      {"random-twice", "--seed", "0"},
			"or none, or auto":         {"random-twice", "--engine-memory", "lots"},
			"is not one of shuffled":   {"shared-prefix", "--order", "sorted"},
			"--trace-output does noth": {"random-twice", "--trace-output"},
			"--no-cold does nothing":   {"random-twice", "--no-cold"},
			"--hit-percent does noth":  {"shared-prefix", "--hit-percent", "50"},
			"above 0, nor none":        {"random-twice", "--chunk-tokens", "0"},
			"more than the 12":         {"random-twice", "--chunk-tokens", "12"},
			"does not fit":             {"shared-prefix", "--models", "DeepSeek-V3@1xH100"},
			"is for Posix, Segment":    {"ucm-table", "--store", "Ds3fs", "--dir", t.TempDir()},
			"--mount is for Ds3fs":     {"ucm-table", "--store", "Posix", "--mount", t.TempDir()},
			"--pages-url is for":       {"ucm-table", "--store", "Posix", "--pages-url", "unix:/nonexistent"},
		} {
			if stdout, stderr, err := benchEngine(t, bin, args...); err == nil || !strings.Contains(stderr, text) {
				t.Errorf("%v: %v: %s%s; want %q", args, err, stdout, stderr, text)
			}
		}
	})
}
