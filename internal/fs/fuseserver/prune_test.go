package fuseserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// childStat looks at files 0 to n-1 of a directory.
func childStat(a []string) error {
	n, err := strconv.Atoi(a[1])
	if err != nil {
		return err
	}
	for i := range n {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(a[0], strconv.Itoa(i)), &st); err != nil {
			return fmt.Errorf("file %d: %w", i, err)
		}
	}
	return nil
}

// files makes n empty files in a new directory of the data directory.
func (w *world) files(dir string, n int) {
	w.t.Helper()
	if err := os.Mkdir(filepath.Join(w.data, dir), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for i := range n {
		fd, err := unix.Open(filepath.Join(w.data, dir, strconv.Itoa(i)), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			w.t.Fatal(err)
		}
		unix.Close(fd)
	}
}

// A user who looks at many files leaves no more nodes than the limit, and the nodes of
// another user stay. Files that are open stay, too, and can be used.
func TestNodesAreForgotten(t *testing.T) {
	for _, c := range []struct {
		name  string
		byID  bool
		files int
	}{{"by node", true, 20_000}, {"by name, as before Linux 6.18", false, 6000}} {
		t.Run(c.name, func(t *testing.T) {
			const limit, honest = 2000, 300
			if testing.Short() {
				c.files = 4000
			}
			w := newWorld(t, Options{Limits: Limits{Nodes: limit}})
			if !c.byID {
				w.m.fs.pruner.byID = func([]uint64) fuse.Status { return fuse.ENOSYS }
			}
			w.files("mine", honest)
			w.files("many", c.files)
			if err := childStat([]string{w.path("mine"), strconv.Itoa(honest)}); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(w.path("many/0"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			before := w.tree.Held(0)
			if before < honest {
				t.Fatalf("root holds %d nodes after it has looked at %d files", before, honest)
			}
			if out, err := w.as("stat", w.path("many"), strconv.Itoa(c.files)); err != nil {
				t.Fatal(out, err)
			}
			t.Logf("%d nodes after a walk over %d files", w.tree.Nodes(), c.files)
			until(t, "the kernel has forgotten files", func() bool { return w.tree.Nodes() <= limit })
			// The kernel may drop some of its own accord, if it is short of memory.
			if now := w.tree.Held(0); now < before/2 {
				t.Errorf("root holds %d nodes, held %d before the other user's walk", now, before)
			}
			if _, err := f.Stat(); err != nil {
				t.Error("an open file: ", err)
			}
		})
	}
}
