package doctor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore/cache"
	"github.com/kv3fs/kv3fs/kvstore/empty"
	"github.com/kv3fs/kv3fs/kvstore/fault"
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// caches holds a block store's caches, a private one and a shared one, until standard
// input ends.
func caches() error {
	for _, shared := range []string{"", "doctor-" + wire.NewUUID().String()} {
		next := fault.New(empty.New(kv.Layout{BlockBytes: 4096, ShardBytes: 4096})) // registers memory
		if _, err := cache.New(next, cache.Options{CapacityBytes: 16 * 4096, SharedName: shared}); err != nil {
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
	p := exec.Command(os.Args[0], "caches")
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
		if x := inspect(path, later, true); x.use != unused || x.bytes < 16*4096 || there(path) {
			t.Errorf("after the process died: %+v", x)
		}
	}
}
