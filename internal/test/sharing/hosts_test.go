package sharing

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// host is a daemon that has a file system of its own over a directory, as one of several hosts with a distributed one.
// Locks do not reach the others.
type host struct {
	*daemontest.Daemon
	store *faultdir.Dir
}

// newHost starts a daemon over a directory that others serve, too. A machine that stands still for some seconds makes no call late.
func newHost(t *testing.T, beneath, name string, believes time.Duration, flags ...string) host {
	t.Helper()
	d := faultdir.Over(t, beneath, believes)
	return host{daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: append([]string{
		"--shared", "on", "--identity", name, "--pages-listen", "off", "--drain", "1s", "--deadline", "1m", "--attr-timeout", "0s", "--entry-timeout", "0s", "--negative-timeout", "0s",
	}, flags...)}), d}
}

// A file system may believe a name that another host has replaced until somebody opens it: GlusterFS does so for as long as
// the old file is read. That a file is open here already must not keep the daemon from opening it.
func TestReplacedWhileOpen(t *testing.T) {
	daemontest.NeedRoot(t)
	beneath := t.TempDir()
	h := newHost(t, beneath, "a", time.Hour)
	path := filepath.Join(h.Mount, "file")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	fresh := filepath.Join(beneath, "fresh")
	if err := os.WriteFile(fresh, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(beneath, "file")); err != nil {
		t.Fatal(err)
	}
	var told bool
	h.store.Fail(func(c faultdir.Call) syscall.Errno {
		if c.Op == "open" && !told {
			told = true
			return syscall.ESTALE
		}
		return 0
	})
	defer h.store.Heal()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "new" {
		t.Errorf("a new open of a file that another host has replaced while it is open here: %q, %v", got, err)
	}
	old := make([]byte, 3)
	if _, err := held.ReadAt(old, 0); err != nil || string(old) != "old" {
		t.Errorf("the descriptor of the file that was replaced: %q, %v", old, err)
	}
}

// tree makes a tree of some depth, with a link that leads out of it.
func tree(t *testing.T, dir, outside string) {
	t.Helper()
	for n := range 24 {
		at := filepath.Join(dir, strconv.Itoa(n%8), strconv.Itoa(n%3), strconv.Itoa(n))
		if err := os.MkdirAll(at, 0o777); err != nil {
			t.Fatal(err)
		}
		for k := range 5 {
			if err := os.WriteFile(filepath.Join(at, strconv.Itoa(k)), []byte("text"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(outside, filepath.Join(at, "link")); err != nil {
			t.Fatal(err)
		}
	}
}

// Hosts remove one tree by 3fs-virt/rm-rf at once: it is gone, and nothing else is. Only one that begins when another has ended may be
// told that there is none. While a third one writes into it, they may be told that it is not empty, and no other error.
func TestRemovedByHostsAtOnce(t *testing.T) {
	daemontest.NeedRoot(t)
	t.Parallel()
	beneath := t.TempDir()
	outside := filepath.Join(beneath, "outside")
	if err := errors.Join(os.Mkdir(outside, 0o777), os.WriteFile(filepath.Join(outside, "file"), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	hosts := []host{newHost(t, beneath, "a", 0), newHost(t, beneath, "b", 0), newHost(t, beneath, "c", 0)}
	remove := func(h host) error {
		err := os.Symlink(filepath.Join(h.Mount, "tree"), filepath.Join(h.Mount, "3fs-virt/rm-rf/x"))
		if err != nil {
			return errors.Unwrap(err)
		}
		return nil
	}
	both := func(may ...error) {
		t.Helper()
		var all sync.WaitGroup
		for _, h := range hosts[:2] {
			all.Go(func() {
				if err := remove(h); err != nil && !slices.Contains(may, err) {
					t.Errorf("a removal by two hosts at once: %v", err)
				}
			})
		}
		all.Wait()
	}
	gone := func() {
		t.Helper()
		for _, h := range hosts {
			if _, err := os.Lstat(filepath.Join(h.Mount, "tree")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the tree: %v", err)
			}
			if _, err := os.Lstat(filepath.Join(h.Mount, "outside/file")); err != nil {
				t.Error("what is not in the tree:", err)
			}
		}
	}
	for range 2 {
		tree(t, filepath.Join(beneath, "tree"), outside)
		var all sync.WaitGroup
		for _, h := range hosts[:2] { // each begins while those before it are about to remove something
			unlinks := h.store.Hang(func(c faultdir.Call) bool { return c.Op == "unlink" && len(c.Name) == 1 })
			all.Go(func() {
				if err := remove(h); err != nil {
					t.Errorf("a removal that has begun before the other one's end: %v", err)
				}
			})
			eventually(t, "a removal begins", func() bool {
				select {
				case <-unlinks:
					return true
				default:
					return false
				}
			})
		}
		for _, h := range hosts[:2] {
			h.store.Heal()
		}
		all.Wait()
		gone()
	}
	for range 3 {
		tree(t, filepath.Join(beneath, "tree"), outside)
		both(syscall.ENOENT)
		gone()
	}
	for range 2 {
		tree(t, filepath.Join(beneath, "tree"), outside)
		stop := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				// Both fail once the directory is gone.
				at := filepath.Join(hosts[2].Mount, "tree", strconv.Itoa(n%8))
				_ = os.Mkdir(filepath.Join(at, "new"), 0o777)
				_ = os.WriteFile(filepath.Join(at, "new", strconv.Itoa(n)), nil, 0o666)
			}
		})
		both(syscall.ENOENT, syscall.ENOTEMPTY)
		close(stop)
		writer.Wait()
		if err := remove(hosts[0]); err != nil && err != syscall.ENOENT {
			t.Error(err)
		}
		gone()
	}
}
