package checksums

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

const blockBytes = 4096

// disk mounts a file system of its own, whose bytes can be changed below it, and returns a directory on it; "" where that
// cannot be done.
func disk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
	const imageBytes = 256 << 20 // which is sparse
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, imageBytes), os.Mkdir(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-I", "256", "-b", strconv.Itoa(blockBytes), image},
		{"mount", "-o", "loop", image, at},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Logf("no disk of our own: %v: %v %s", args, err, out)
			return ""
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

// damage changes a byte of a file in the data directory as bad memory or a bad disk does: no time of the file
// tells.
func damage(t testing.TB, path string, off int64) {
	t.Helper()
	if err := tryDamage(t, path, off); err != nil {
		t.Fatal(err)
	}
}

func tryDamage(t testing.TB, path string, off int64) error {
	t.Helper()
	if inMemory(filepath.Dir(path)) {
		return damageMemory(path, off)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	backing, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		daemontest.NotTested(t, "the disk cannot be damaged: "+err.Error())
	}
	if err := f.Sync(); err != nil {
		return err
	}
	block, err := blockOf(f, off/blockBytes)
	if err != nil {
		return err
	}
	image, err := os.OpenFile(strings.TrimSpace(string(backing)), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	b, seen := []byte{0}, []byte{0}
	at := block*blockBytes + off%blockBytes
	if _, err := image.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 1
	if _, err := image.WriteAt(b, at); err != nil {
		return err
	}
	for range 10_000 { // what somebody is reading stays in the page cache
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
		if _, err := f.ReadAt(seen, off); err != nil {
			return err
		}
		if bytes.Equal(seen, b) {
			return nil
		}
	}
	return fmt.Errorf("%s: its damage does not show", path)
}

// blockOf returns where a block of a file lies.
func blockOf(f *os.File, n int64) (int64, error) {
	cmd := exec.Command("filefrag", "-v", "/dev/stdin")
	cmd.Stdin = f
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("filefrag: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		var i, first, last, at int64
		if _, err := fmt.Sscanf(line, "%d: %d.. %d: %d..", &i, &first, &last, &at); err == nil && first <= n && n <= last {
			return at + n - first, nil
		}
	}
	return 0, fmt.Errorf("block %d is not in\n%s", n, out)
}

// damageMemory changes a byte through a mapping, of a page that was read before.
func damageMemory(path string, off int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	page := off / blockBytes * blockBytes
	mem, err := unix.Mmap(int(f.Fd()), page, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	mem[off-page] ^= 1
	return unix.Munmap(mem)
}
