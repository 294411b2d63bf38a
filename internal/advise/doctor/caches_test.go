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

// caches holds two block stores with caches until standard input ends: one private, in
// front of rings on a mount, and one shared.
func caches(mount string) error {
	private := kvstore.Config{
		Namespace: keys.Namespace{Model: "doctor", BlockTokens: 16},
		Layout:    kvstore.Layout{BlockBytes: 4096},
		Cache:     &kvstore.CacheOptions{CapacityBytes: 16 * 4096},
		Ds3fs:     &kvstore.Ds3fsOptions{Mount: mount, RingOptions: kvstore.RingOptions{BufferBytes: 1 << 20}},
	}
	if _, err := kvstore.Open("Cache|Ds3fs", private); err != nil {
		return err
	}
	shared := private
	shared.Ds3fs = nil
	shared.Cache = &kvstore.CacheOptions{CapacityBytes: 16 * 4096, Shared: true, SharedName: "doctor-" + wire.NewUUID().String()}
	if _, err := kvstore.Open("Cache|Empty", shared); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// mappedObjects returns the objects of caches that a process maps.
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
	slices.Sort(paths)
	return slices.Compact(paths) // rings map the private one, too
}

// The memory of caches is kept while their process lives, and removed after it is killed.
func TestCachesOfTheKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a daemon")
	}
	d := daemontest.Serve(t, "--pages-listen", "off")
	p := exec.Command(os.Args[0], "caches", d.Mount)
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
	objects := mappedObjects(t, p.Process.Pid)
	if len(objects) != 2 || !strings.Contains(strings.Join(objects, " "), memory.NamePrefix+"own-") ||
		!strings.Contains(strings.Join(objects, " "), memory.NamePrefix+"cache-doctor-") {
		t.Fatalf("it maps %q", objects)
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
	for _, path := range objects {
		x := inspect(path, later, true)
		for end := time.Now().Add(10 * time.Second); there(path) && time.Now().Before(end); x = inspect(path, later, true) {
			time.Sleep(10 * time.Millisecond) // until the daemon has unmapped the dead client's buffer
		}
		// What only that process could use, the daemon may have removed.
		shared := strings.Contains(path, memory.NamePrefix+"cache-")
		if there(path) || shared && (x.use != unused || x.bytes < 16*4096) {
			t.Errorf("after the process died: %+v", x)
		}
	}
}
