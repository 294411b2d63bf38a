package sharing

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

const keptBytes = 8 << 20

// fill puts twice as much as may be there into a directory, as LMCache names it, an hour ago.
func fill(t *testing.T, dir, round string) {
	t.Helper()
	was := time.Now().Add(-time.Hour)
	for n := range 2 * keptBytes >> 20 {
		name := filepath.Join(dir, fmt.Sprintf("meta-llama-SEP-Llama-3-8B@1@0@%s%x@half.data", round, n))
		if err := os.WriteFile(name, make([]byte, 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, was, was); err != nil {
			t.Fatal(err)
		}
	}
}

// within reports whether no more is in a directory than may be, and not nothing.
func within(t *testing.T, dir string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) > 0 && len(entries) <= keptBytes>>20
}

// Of three daemons with a capacity over one directory, one keeps it. When that is killed another one does; one that was stopped
// and wakes again removes nothing, but for one file that it was about to remove. Clients do not see the keepers' state.
func TestOneHostKeeps(t *testing.T) {
	daemontest.NeedRoot(t)
	t.Parallel()
	beneath := t.TempDir()
	dir := filepath.Join(beneath, "kv")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	fill(t, dir, "a")
	hosts := map[string]host{}
	start := func(name string) {
		hosts[name] = newHost(t, beneath, name, 0, "--capacity", "8MiB", "--eviction-grace", "1s", "--keeper-lease", "5s", "--log-level", "DEBUG")
	}
	const keeps = "this host has the lease"
	keeper := func() string {
		for name, h := range hosts {
			if strings.Contains(h.Log(), keeps) {
				return name
			}
		}
		return ""
	}
	start("one")
	start("two")
	eventually(t, "one host keeps the directory", func() bool { return keeper() != "" && within(t, dir) })
	first := keeper()
	if _, err := os.Lstat(filepath.Join(hosts[first].Mount, kv3fs.KeepDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state of the keepers in the mount: %v", err)
	}
	eventually(t, "the other stands by", func() bool {
		return strings.Contains(hosts["one"].Log()+hosts["two"].Log(), "standing by: another keeper has the lease")
	})
	hosts[first].Kill()
	delete(hosts, first)
	fill(t, dir, "b")
	eventually(t, "the other one keeps it", func() bool { return keeper() != "" && within(t, dir) })

	second := hosts[keeper()]
	second.Freeze(t)
	hosts = map[string]host{}
	fill(t, dir, "c")
	start("three")
	eventually(t, "a third one keeps it", func() bool { return keeper() == "three" && within(t, dir) })
	fill(t, dir, "d") // for which the third one does not look yet
	const removed = "removed a file"
	before := strings.Count(second.Log(), removed)
	if before == 0 {
		t.Error("the second one has removed nothing")
	}
	second.Thaw(t)
	eventually(t, "the second one has lost the lease", func() bool { return strings.Contains(second.Log(), "lost the lease") })
	// It may have been stopped between its look at the lease and what it was to remove next.
	if after := strings.Count(second.Log(), removed); after > before+1 {
		t.Errorf("the second one has removed %d files since it woke", after-before)
	}
}
