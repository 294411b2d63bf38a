package doctor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// caches holds a block store's shared cache and, in front of a 3FS at mount, a private
// one, until standard input ends.
func caches(mount string) error {
	name := "doctor-" + wire.NewUUID().String()
	c := kvstore.Config{
		Namespace: keys.Namespace{Model: name, BlockTokens: 16},
		Layout:    kvstore.Layout{BlockBytes: 4096},
		Cache:     &kvstore.CacheOptions{CapacityBytes: 16 * 4096, Shared: true, SharedName: name},
	}
	if _, err := kvstore.Open("Cache|Empty", c); err != nil {
		return err
	}
	if mount != "" {
		c.Cache = &kvstore.CacheOptions{CapacityBytes: 16 * 4096}
		c.Ds3fs = &kvstore.Ds3fsOptions{Mount: mount}
		if _, err := kvstore.Open("Cache|Ds3fs", c); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// mappedObjects returns the objects of caches and other block memory that a process
// maps.
func mappedObjects(t *testing.T, pid int) (paths []string) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if at := strings.Index(line, filepath.Join(shm.Dir, memory.NamePrefix)); at >= 0 {
			paths = append(paths, strings.TrimSpace(line[at:]))
		}
	}
	return paths
}

// The memory of caches is kept while their process lives and removed after it was
// killed.
func TestCachesOfTheKilled(t *testing.T) {
	mount, want := "", []string{memory.NamePrefix + "cache-doctor-"}
	if !testing.Short() { // only a cache in front of rings has its own memory in /dev/shm
		daemontest.NeedMounts(t)
		mount, want = daemontest.Serve(t).Mount, append(want, memory.NamePrefix+"own-")
	}
	p := exec.Command(os.Args[0], "caches", mount)
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Wait()
	defer p.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	objects := slices.Compact(slices.Sorted(slices.Values(mappedObjects(t, p.Process.Pid)))) // rings map one again
	for _, prefix := range want {
		if len(objects) != len(want) || !strings.Contains(strings.Join(objects, " "), prefix) {
			t.Fatalf("it maps %q", objects)
		}
	}
	later := time.Now().Add(time.Hour)
	for _, path := range objects {
		t.Cleanup(func() { os.Remove(path) })
		if x := inspect(path, later, true); x.use != used || !there(path) {
			t.Errorf("while the process lives: %+v", x)
		}
	}
	p.Process.Kill()
	p.Wait()
	// The daemon maps what was registered until it sees that its client is gone.
	for _, path := range objects {
		for deadline := time.Now().Add(10 * time.Second); inspect(path, later, false).use == used && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, path := range objects {
		if x := inspect(path, later, true); x.use != unused || x.bytes < 16*4096 || there(path) {
			t.Errorf("after the process died: %+v", x)
		}
	}
}
