package integrity

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// However many doubtful files a client makes, the log tells of certain damage, and of a disk that cannot be written to.
func TestDoubtHidesNothing(t *testing.T) {
	var lines bytes.Buffer
	dir := t.TempDir()
	s, err := Open(Options{Files: dir, Dir: filepath.Join(dir, "sums"), Log: slog.New(slog.NewTextHandler(&lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 1100 { // more than logpace tells apart
		s.Report("mine/"+itoa(i), Damage{0, RangeBytes, false})
	}
	lines.Reset()
	s.Report("victim", Damage{0, RangeBytes, true})
	s.failed(unix.EROFS)
	s.ReportAside("victim", "", unix.EPERM)
	if n := strings.Count(lines.String(), "\n"); n != 3 {
		t.Errorf("%d lines: %s", n, &lines)
	}
}

// Files of another file system have none, whatever their inode numbers.
func TestOtherDevice(t *testing.T) {
	daemontest.NeedRoot(t)
	daemontest.NeedMounts(t)
	rng := rngFor(t)
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	for _, at := range []string{dir, sub} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("kv3fs-test", at, "tmpfs", 0, "size=4m,mode=755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		})
	}
	s := openStore(t, dir)
	defer s.Close()
	content := random(rng, RangeBytes)
	o := create(t, s, filepath.Join(dir, "f"))
	o.write(content, 0)
	o.close()
	reader, err := s.NewScrubber()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	same := false
	for i := range 200 { // their numbers begin at the same one
		fd, err := unix.Open(filepath.Join(sub, itoa(i)), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		st, err := look(fd)
		if err != nil {
			t.Fatal(err)
		}
		same = same || st.ino == o.sums.key
		if f := s.Acquire(fd, false); f != nil {
			s.Release(f, fd)
			t.Errorf("inode %d of another device has sums", st.ino)
		}
		if err := reader.File(t.Context(), fd, -1, func(int64, int64) error { return nil }, func(Damage) error { return nil }); err != nil {
			t.Error(err)
		}
		unix.Close(fd)
	}
	if !same {
		t.Errorf("no file there has the number %d", o.sums.key)
	}
	o = open(t, s, o.path, unix.O_RDONLY)
	defer o.close()
	if _, _, found, verified := o.read(0, RangeBytes); found || verified != RangeBytes {
		t.Errorf("damage %v, %d bytes verified", found, verified)
	}
}

// Files that nobody has ever written through a daemon can be served by one that writes nothing.
func TestNeverWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Files: dir, Dir: filepath.Join(dir, "absent", "sums"), Readonly: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	o := open(t, s, path, unix.O_RDONLY)
	if _, _, found, verified := o.read(0, 1); found || verified != 0 {
		t.Errorf("damage %v, %d bytes verified", found, verified)
	}
	o.close()
	s.save(true)
	s.Close()
	if _, err := os.Lstat(filepath.Join(dir, "absent")); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}

// Who opens a large file again and again to write a byte does not have all its sums saved each time.
func TestLargeFileLeft(t *testing.T) {
	s := openStore(t, dirs(t)[0])
	defer s.Close()
	path := filepath.Join(filepath.Dir(s.opts.Dir), "f")
	o := create(t, s, path)
	o.write([]byte{1}, 0)
	for k := range int64(1 << 16) { // 8 GiB
		o.sums.set(k, newWord(uint64(k)+1<<20, firm))
	}
	o.sums.has.Store(true)
	o.close()
	for range 100 {
		o := open(t, s, path, unix.O_RDWR)
		o.write([]byte{1}, 0)
		o.close()
	}
	if len(s.log.segments) > 0 {
		t.Errorf("%d bytes in the log", s.log.segments[0].bytes)
	}
	s.save(false)
	if s.log.files() != 1 {
		t.Errorf("%d files in the log", s.log.files())
	}
}
