package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// flip damages one byte of a file.
func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	one := make([]byte, 1)
	_, err = f.ReadAt(one, at)
	must(t, err)
	one[0] ^= 0x20
	_, err = f.WriteAt(one, at)
	must(t, err)
	must(t, f.Close())
}

func sumLogs(t testing.TB, dir string) []string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, sums.DirName, "*.log"))
	must(t, err)
	return logs
}

// The checksums are lost in one way or another, and every block is damaged: no block is
// loaded, and all can be saved again. UCM's blocks in the same directory are still loaded.
func TestLostSums(t *testing.T) {
	for name, lose := range map[string]func(log string) error{
		"the log is deleted":            os.Remove,
		"the directory is deleted":      func(log string) error { return os.RemoveAll(filepath.Dir(log)) },
		"the log is empty":              func(log string) error { return os.Truncate(log, 0) },
		"the log is zeros":              func(log string) error { return zeros(log) },
		"the log has another's content": func(log string) error { return os.WriteFile(log, content(key(1), 9), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, in(dir))
			must(t, save(t, s, 0, keys(20)...))
			must(t, s.Close())
			theirs := key(100)
			ucmWrites(t, dir, theirs, content(theirs, 0))
			must(t, lose(sumLogs(t, dir)[0]))
			for i, k := range keys(20) {
				flip(t, ucmPath(dir, k), int64(97*i))
			}
			s = open(t, in(dir))
			for _, k := range keys(20) {
				misses(t, s, k)
			}
			loads(t, s, theirs, 0)
			if st := s.Stats(); st.UnverifiedShards != int64(layout.Shards()) {
				t.Errorf("%+v", st)
			}
			must(t, save(t, s, 0, keys(20)...))
			for _, k := range keys(20) {
				loads(t, s, k, 0)
				loads(t, open(t, in(dir)), k, 0)
			}
		})
	}
}

// zeros makes all of a file zeros, without changing its size.
func zeros(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, make([]byte, info.Size()), 0o644)
}

// A power cut leaves files of zeros and logs without their ends, because nothing is synced.
func TestPowerCut(t *testing.T) {
	const written, kept = 20, 7
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, keys(kept)...))
	log := sumLogs(t, dir)[0]
	info, err := os.Stat(log)
	must(t, err)
	must(t, save(t, s, 0, keys(written)[kept:]...))
	must(t, s.Close())
	must(t, os.Truncate(log, info.Size()+30))
	for _, k := range keys(written) {
		must(t, zeros(ucmPath(dir, k)))
	}
	s = open(t, in(dir))
	for i, k := range keys(written) {
		if _, err := load(t, s, k); !errors.Is(err, kv.ErrMiss) || errors.Is(err, kv.ErrCorrupt) != (i < kept) {
			t.Errorf("block %d: %v", i, err)
		}
	}
}

// A block is found damaged by the process that saved it, after another one has loaded it.
// That one saves it again. Every process verifies it then.
func TestSavedAgainByAnother(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, in(dir)), open(t, in(dir))
	for i, k := range keys(20) {
		must(t, save(t, a, 0, k))
		loads(t, b, k, 0)
		flip(t, ucmPath(dir, k), int64(100*i))
		if _, err := load(t, a, k); !errors.Is(err, kv.ErrCorrupt) {
			t.Fatal(err)
		}
		must(t, save(t, b, 0, k))
	}
	fresh := open(t, in(dir))
	for _, s := range []kv.Store{a, b, fresh} {
		for _, k := range keys(20) {
			loads(t, s, k, 0)
		}
		if st := s.Stats(); st.UnverifiedShards != 0 {
			t.Errorf("%+v", st)
		}
	}
	must(t, b.Close())
	must(t, fresh.Close())
	for i, k := range keys(20) {
		flip(t, ucmPath(dir, k), int64(300*i))
		if _, err := load(t, open(t, in(dir)), k); !errors.Is(err, kv.ErrMiss) {
			t.Errorf("damage is loaded: %v", err)
		}
	}
}

// A block of the same namespace that is cut into other shards cannot be verified, so it is
// a miss. Saved in both ways, it is there for both.
func TestCutAnotherWay(t *testing.T) {
	dir := t.TempDir()
	o := in(dir)
	o.Layout = kv.Layout{BlockBytes: layout.BlockBytes, ShardBytes: layout.BlockBytes}
	whole, layered := open(t, o), open(t, in(dir))
	must(t, save(t, whole, 0, key(1)))
	misses(t, layered, key(1))
	must(t, save(t, layered, 0, key(1)))
	loads(t, layered, key(1), 0)
	loads(t, whole, key(1), 0)
	must(t, save(t, whole, 0, key(2)))
	must(t, layered.Delete(t.Context(), listed(t, layered))) // it is of the namespace
	if n := len(ucmtest.Blocks(t, dir)); n != 0 {
		t.Errorf("%d blocks are left", n)
	}
	for _, s := range []kv.Store{whole, layered} {
		if st := s.Stats(); st.UnverifiedShards != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// Where version 0.1.0 has written, blocks have no mark: without a record they may be
// damaged ones of the store. They are loaded once the user says that they are UCM's.
func TestDirectoryOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1), key(2)))
	must(t, s.Close())
	marked := filepath.Join(dir, sums.DirName, "marked")
	must(t, os.Remove(marked))
	for _, path := range append(ucmtest.Blocks(t, dir), sumLogs(t, dir)...) {
		must(t, os.Chmod(path, 0o644))
	}
	s = open(t, in(dir))
	loads(t, s, key(1), 0)
	loads(t, s, key(2), 0)
	must(t, s.Close())
	must(t, os.Truncate(sumLogs(t, dir)[0], 0))
	ucmWrites(t, dir, key(3), content(key(3), 0))
	s = open(t, in(dir))
	for _, k := range keys(4) {
		misses(t, s, k)
	}
	must(t, os.WriteFile(marked, nil, 0o644))
	must(t, os.Chmod(marked, 0o644|sums.Mark))
	loads(t, s, key(3), 0)
}

// A block that UCM has not finished is a miss.
func TestUnfinishedBlockOfUCM(t *testing.T) {
	big := kv.Layout{BlockBytes: 256 << 10, ShardBytes: 64 << 10}
	dir := t.TempDir()
	o := in(dir)
	o.Layout = big
	s := open(t, o)
	raw := make([]byte, big.BlockBytes)
	for i := range raw {
		raw[i] = byte(i)
	}
	ucmWrites(t, dir, key(1), raw)
	loadsIt := func(k kv.Key) {
		t.Helper()
		if _, err := load(t, s, k); err != nil || !has(t, s, k) {
			t.Errorf("a finished block: %v", err)
		}
	}
	loadsIt(key(1))

	// Its third shard is late.
	path := ucmPath(dir, key(2))
	must(t, os.MkdirAll(filepath.Dir(path), 0o774))
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for _, shard := range []int64{3, 0, 1} {
		_, err := f.WriteAt(raw[:big.ShardBytes], shard*big.ShardBytes)
		must(t, err)
	}
	misses(t, s, key(2))
	_, err = f.WriteAt(raw[:big.ShardBytes], 2*big.ShardBytes)
	must(t, err)
	loadsIt(key(2))

	// A late shard has made the temporary file again.
	must(t, os.WriteFile(path+".tmp", raw[:100], 0o644))
	fresh := open(t, o)
	misses(t, fresh, key(2))
	must(t, os.Remove(path+".tmp"))
	loadsIt(key(2))
}
