package files_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// Requirement 5.2: UCM and this store read one directory.
func TestReadsWhatUCMWrites(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	ucmWrites(t, dir, key(1), content(key(1), 0))
	if !has(t, s, key(1)) {
		t.Error("not found")
	}
	loads(t, s, key(1), 0)
	if n := s.Stats().UnverifiedShards; n != int64(layout.Shards()) {
		t.Errorf("%d shards are counted as unverified", n)
	}
	o := in(dir)
	o.Checksums = kv.ChecksumsRequire
	strict := open(t, o)
	if _, err := load(t, strict, key(1)); err != kv.ErrMiss || has(t, strict, key(1)) {
		t.Errorf("where checksums are required: %v", err)
	}
	must(t, save(t, strict, 0, key(1)))
	loads(t, strict, key(1), 0)
}

func TestUCMReadsWhatIsWritten(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, keys(20)...))
	for _, k := range keys(20) {
		raw, err := os.ReadFile(ucmPath(dir, k))
		if err != nil || !bytes.Equal(raw, content(k, 0)) {
			t.Errorf("%s: %v", k, err)
		}
		// Another user can enter the directory.
		info, err := os.Stat(filepath.Dir(ucmPath(dir, k)))
		if err != nil || info.Mode()&0o055 != 0o055 {
			t.Errorf("%v %v", info.Mode(), err)
		}
	}
	eventually(t, "nothing is left behind", func() bool {
		left, err := os.ReadDir(filepath.Join(dir, ".kv3fs-temp"))
		return err == nil && len(left) == 0
	})
	for digits, want := range map[int]string{0: "data", 5: key(0).String()[:5]} {
		o := in(t.TempDir())
		o.DirShardDigits = &digits
		must(t, save(t, open(t, o), 0, key(0)))
		if _, err := os.Stat(filepath.Join(o.Dirs[0], want, key(0).String())); err != nil {
			t.Error(err)
		}
	}
}

// What UCM writes after a block of ours was evicted is UCM's, and no damage though our record
// differs.
func TestUCMWritesAnew(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1)))
	must(t, os.Remove(ucmPath(dir, key(1))))
	ucmWrites(t, dir, key(1), content(key(1), 7))
	loads(t, s, key(1), 7)
	if n := s.Stats().CorruptBlocks; n != 0 {
		t.Errorf("%d blocks are counted as damaged", n)
	}
	loads(t, s, key(1), 7)
	other := open(t, in(dir))
	loads(t, other, key(1), 7)
}

// Blocks of another deployment in the same directory are not ours and stay.
func TestOtherSizes(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	theirs := bytes.Repeat([]byte("x"), 5000)
	ucmWrites(t, dir, key(1), theirs)
	if _, err := load(t, s, key(1)); err != kv.ErrMiss || has(t, s, key(1)) {
		t.Error(err)
	}
	if raw, err := os.ReadFile(ucmPath(dir, key(1))); err != nil || !bytes.Equal(raw, theirs) {
		t.Errorf("it was touched: %v", err)
	}
	if n := s.Stats().CorruptBlocks; n != 0 {
		t.Errorf("%d blocks are counted as damaged", n)
	}
	for i, strange := range []func(path string) error{
		func(path string) error { return os.MkdirAll(path, 0o755) },
		func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		k := key(10 + i)
		must(t, os.MkdirAll(filepath.Dir(ucmPath(dir, k)), 0o755))
		must(t, strange(ucmPath(dir, k)))
		if _, err := load(t, s, k); err != kv.ErrMiss || has(t, s, k) {
			t.Errorf("a file that is not a block: %v", err)
		}
	}
	// A block of another size is not ours either if we had one under that key.
	o := in(dir)
	o.Layout, o.Namespace = kv.Layout{BlockBytes: 1000, ShardBytes: 1000}, kv.Fingerprint{1}
	other := open(t, o)
	must(t, save(t, s, 0, key(2)))
	must(t, os.Remove(ucmPath(dir, key(2))))
	fresh := open(t, in(dir)) // s has the block open
	task, err := other.Save(t.Context(), []kv.Shard{{Key: key(2), Buf: make([]byte, 1000)}})
	must(t, err)
	must(t, task.Wait(t.Context()))
	if _, err := load(t, fresh, key(2)); err != kv.ErrMiss {
		t.Error(err)
	}
	if !has(t, other, key(2)) {
		t.Error("the other deployment has lost its block")
	}
}

// A block goes where its key says and is found wherever it is.
func TestSeveralDirs(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "a"), t.TempDir(), t.TempDir()}
	s := open(t, in(dirs...))
	must(t, save(t, s, 0, keys(30)...))
	for _, k := range keys(30) {
		if _, err := os.Stat(ucmPath(dirs[binary.BigEndian.Uint64(k[8:])%3], k)); err != nil {
			t.Error(err)
		}
	}
	for i, dir := range dirs {
		ucmWrites(t, dir, key(100+i), content(key(100+i), 0))
	}
	for i := range dirs {
		if !has(t, s, key(100+i)) {
			t.Error("not found")
		}
		loads(t, s, key(100+i), 0)
	}
	must(t, save(t, s, 0, key(100), key(101), key(102)))
	copies := 0
	for _, dir := range dirs {
		copies += len(ucmtest.Blocks(t, dir))
	}
	if copies != 33 {
		t.Errorf("33 blocks are there %d times", copies)
	}
}

// UCM's cleaner takes the modification time for the time of the last use.
func TestUseShowsInTime(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1), key(2)))
	long, short := time.Now().Add(-time.Hour), time.Now()
	must(t, os.Chtimes(ucmPath(dir, key(1)), long, long))
	must(t, os.Chtimes(ucmPath(dir, key(2)), short, short))
	for i, renewed := range map[int]bool{1: true, 2: false} {
		loads(t, s, key(i), 0)
		info, err := os.Stat(ucmPath(dir, key(i)))
		must(t, err)
		if got := !info.ModTime().Equal(map[int]time.Time{1: long, 2: short}[i]); got != renewed {
			t.Errorf("block %d: last used %v ago", i, time.Since(info.ModTime()))
		}
	}
}

// A Save of blocks that are there may be done at once. Its slice then belongs to the
// caller, even if the store has not gone through all of it.
func TestDumpOfWhatIsThere(t *testing.T) {
	s := open(t, in(t.TempDir()))
	all := keys(50)
	must(t, save(t, s, 0, all...))
	buf := make([]byte, layout.BlockBytes)
	bufs := make([][]byte, len(all))
	for i := range bufs {
		bufs[i] = buf
	}
	for range 50 {
		shards := layout.ByLayer(all, bufs)
		task, err := s.Save(t.Context(), shards)
		must(t, err)
		must(t, task.Wait(t.Context()))
		for i := range shards {
			shards[i] = kv.Shard{Index: -1}
		}
	}
	loads(t, s, all[7], 0)
}
