package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// With --log-format json, all that a server says is JSON: a mistake, the line that it serves, its stop, and what it fails from.
func TestEveryLineIsJSON(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	lines := func(said string) (all []map[string]any) {
		for line := range strings.Lines(said) {
			one := map[string]any{}
			if err := json.Unmarshal([]byte(line), &one); err != nil || one["level"] == nil || one["msg"] == nil || one["time"] == nil {
				t.Errorf("no line of JSON: %q", line)
			}
			all = append(all, one)
		}
		return all
	}
	d := daemontest.ServeWith(t, daemontest.Options{Binary: bin, Flags: []string{"--log-format", "json", "--log-level", "error", "--drain", "1s"}})
	if said := lines(d.Log()); said[len(said)-1]["msg"] != "serving" || said[len(said)-1]["pid"] != float64(d.PID()) {
		t.Errorf("its last line is %v", said[len(said)-1])
	}
	second := runUntil(t, bin, "never", "serve", "--data", d.Data, "--mount", filepath.Join(t.TempDir(), "mnt"), "--log-format=json")
	<-second.exited
	if said := lines(second.said()); len(said) == 0 || said[len(said)-1]["level"] != "ERROR" || !strings.Contains(said[len(said)-1]["err"].(string), d.Data) {
		t.Errorf("a second daemon: %s", second.said())
	}
	file := filepath.Join(t.TempDir(), "kv3fs.yaml")
	if err := os.WriteFile(file, []byte("log-format: json\nworkers: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"serve", "--config", file, "--log-format", "json"},
		{"serve", "--data", t.TempDir(), "--mount", filepath.Join(t.TempDir(), "m"), "--log-format", "json", "--workers", "0"},
		{"pages", "serve", "--data", t.TempDir(), "--log-format", "json", "--listen", "nowhere"},
		{"keep", filepath.Join(t.TempDir(), "missing"), "--capacity", "1GiB", "--log-format", "json"},
	} {
		r := runUntil(t, bin, "never", args...)
		<-r.exited
		if said := lines(r.said()); len(said) != 1 || said[0]["level"] != "ERROR" || said[0]["err"] == "" {
			t.Errorf("%v: %s", args, r.said())
		}
	}
}
