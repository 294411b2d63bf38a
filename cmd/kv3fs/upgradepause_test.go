package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// How long clients wait for an upgrade, with 1,000 open files and as many nodes that the kernel knows as KV3FS_SOAK says, such as a million.
// It is no benchmark of Go's, since all of that takes long to make.
func TestUpgradePause(t *testing.T) {
	const perDir, opened = 1000, 1000
	nodes, err := strconv.Atoi(os.Getenv("KV3FS_SOAK"))
	if err != nil {
		t.Skip("KV3FS_SOAK is no number of nodes")
	}
	u := startUpgradable(t, "serve")
	for n := 0; n < nodes; n += perDir {
		dir := filepath.Join(u.data, "d"+strconv.Itoa(n/perDir))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range perDir {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range nodes {
		path := filepath.Join(u.mount, fmt.Sprintf("d%d/%d", n/perDir, n%perDir))
		if n < opened {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			continue
		}
		if _, err := os.Lstat(path); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		out, status := u.upgrade(t, "--json")
		var report struct {
			PauseMs   float64 `json:"pause_ms"`
			MountKept bool    `json:"mount_kept"`
		}
		if err := json.Unmarshal([]byte(out), &report); status != 0 || err != nil || !report.MountKept {
			t.Fatalf("upgrade: %d: %s", status, out)
		}
		t.Logf("%d nodes, %d open files: clients have waited %.1f ms", nodes, opened, report.PauseMs)
	}
}
