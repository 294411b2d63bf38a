package daemon

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/lease"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// A directory that fails when its keeper's turn has come, or later, is kept once it works again, and nothing is lost.
func TestKeptDirectoryFails(t *testing.T) {
	d := faultdir.New(t)
	oldBlocks(t, d.Beneath, 0, 40)
	if err := os.Mkdir(filepath.Join(d.Beneath, kv3fs.KeepDir), 0o700); err != nil {
		t.Fatal(err)
	}
	state, err := os.OpenRoot(filepath.Join(d.Beneath, kv3fs.KeepDir))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	other, err := lease.New(state, lease.Options{Period: time.Hour, Me: lease.Holder{Identity: "other", Host: "other"}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := other.Try(); err != nil || !s.Held {
		t.Fatal(s, err)
	}
	log, stop := keepFor(t, d.Path)
	log.await(t, "standing by", 1)
	const fails = "the directory fails"
	for i, errno := range []syscall.Errno{syscall.EIO, syscall.ESTALE} {
		d.Fail(func(c faultdir.Call) syscall.Errno {
			if c.Op == "statfs" {
				return errno
			}
			return 0
		})
		if i == 0 {
			if err := other.Release(); err != nil {
				t.Fatal(err)
			}
			log.await(t, fails, 1)
		}
	}
	if n := blocksIn(t, d.Beneath); n != 40 {
		t.Errorf("%d of 40 files are left before anybody could keep them", n)
	}
	d.Heal()
	log.await(t, "removed files to make room", 1)

	d.Fail(faultdir.EIO("lookup", "getattr", "opendir", "readdir", "unlink", "statfs", "create", "open", "read", "write"))
	log.await(t, "the directory is away: nothing", 1)
	left := blocksIn(t, d.Beneath)
	d.Heal()
	log.await(t, "the directory is back", 1)
	oldBlocks(t, d.Beneath, 40, 80)
	for end := time.Now().Add(time.Minute); blocksIn(t, d.Beneath) >= left+40; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is removed from a directory that is back")
		}
	}
	stop()
}
