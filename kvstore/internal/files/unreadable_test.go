package files_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// disk is an ext4 file system in a file.
type disk struct{ image, mounted string }

func newDisk(t *testing.T) *disk {
	t.Helper()
	dir := t.TempDir()
	d := &disk{filepath.Join(dir, "image"), filepath.Join(dir, "disk")}
	must(t, os.Mkdir(d.mounted, 0o755))
	must(t, os.WriteFile(d.image, nil, 0o600))
	must(t, os.Truncate(d.image, 16<<20))
	d.run(t, "mkfs.ext4", "-q", "-F", "-I", "256", d.image)
	d.run(t, "debugfs", "-R", "stats", d.image)
	d.mount(t)
	t.Cleanup(func() { _ = unix.Unmount(d.mounted, unix.MNT_DETACH) }) // EINVAL while it is not mounted
	return d
}

// run runs a program that a machine may lack, or may not let us use.
func (d *disk) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: a disk of our own: %s: %v: %s", name, err, out)
	}
}

func (d *disk) mount(t *testing.T) { t.Helper(); d.run(t, "mount", "-o", "loop", d.image, d.mounted) }

// edit changes the file system with a command of debugfs, while it is not mounted.
func (d *disk) edit(t *testing.T, command string) {
	t.Helper()
	// Whatever looks at all mounts of the machine may have it open for a moment.
	eventually(t, "the disk is unmounted", func() bool { return unix.Unmount(d.mounted, 0) == nil })
	if out, err := exec.Command("debugfs", "-w", "-R", command, d.image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.mount(t)
}

// The inode of a block is damaged, so that its name can neither be opened nor removed nor
// replaced. The block is a miss, and can be saved, loaded and deleted, also by stores that are
// opened later. Once the file system is repaired, the block is in its own place again.
func TestUnreadableInode(t *testing.T) {
	for name, damage := range map[string]string{
		"cleared":        "clri",              // EUCLEAN
		"wrong checksum": "sif %s checksum 7", // EBADMSG
		"no extents":     "sif %s block[0] 7", // EUCLEAN
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			s := open(t, in(d.mounted))
			must(t, save(t, s, 0, keys(4)...))
			bad := key(2)
			path := ucmPath(d.mounted, bad)
			must(t, s.Close())
			if !strings.Contains(damage, "%s") {
				damage += " %s"
			}
			d.edit(t, strings.ReplaceAll(damage, "%s", strings.TrimPrefix(path, d.mounted)))
			if _, err := os.Stat(path); !kv.IsUnreadable(err) {
				t.Skipf("NOT TESTED: this kernel can read such an inode: %v", err)
			}

			s = open(t, in(d.mounted))
			if has(t, s, bad) {
				t.Error("found")
			}
			if _, err := load(t, s, bad); !errors.Is(err, kv.ErrMiss) && !kv.IsUnreadable(err) {
				t.Error(err)
			}
			must(t, s.Delete(t.Context(), []kv.Key{bad}))
			for range 2 {
				must(t, save(t, s, 0, keys(4)...))
				for _, k := range keys(4) {
					loads(t, s, k, 0)
				}
				must(t, s.Close())
				s = open(t, in(d.mounted))
			}
			if !has(t, s, bad) {
				t.Error("not found after it was saved again")
			}
			must(t, s.Delete(t.Context(), []kv.Key{bad}))
			if has(t, s, bad) {
				t.Error("found after it was deleted")
			}
			must(t, save(t, s, 0, bad))
			must(t, s.Close())

			d.edit(t, "unlink "+strings.TrimPrefix(path, d.mounted))
			s = open(t, in(d.mounted))
			eventually(t, "the block is in its place", func() bool { return has(t, s, bad) })
			loads(t, s, bad, 0)
			if st := s.Stats(); st.CorruptBlocks > 0 {
				t.Errorf("%+v", st)
			}
			must(t, s.Close())
		})
	}
}
