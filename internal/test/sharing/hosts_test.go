package sharing

import (
	"os"
	"path/filepath"
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

// newHost starts a daemon over a directory that others serve, too.
func newHost(t *testing.T, beneath, name string, believes time.Duration, flags ...string) host {
	t.Helper()
	d := faultdir.Over(t, beneath, believes)
	return host{daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: append([]string{
		"--shared", "on", "--identity", name, "--pages-listen", "off", "--drain", "1s", "--attr-timeout", "0s", "--entry-timeout", "0s", "--negative-timeout", "0s",
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
