package files_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

func quarantined(t testing.TB, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, ".kv3fs-quarantine", "*"))
	must(t, err)
	return all
}

// A damaged block is a miss, is counted once and put aside. The latest few are kept.
func TestQuarantine(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, keys(20)...))
	for _, path := range ucmtest.Blocks(t, dir) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("damage"), 5000)
		must(t, err)
		must(t, f.Close())
	}
	for i, k := range keys(20) {
		_, err := load(t, s, k)
		var damage *kv.CorruptError
		if !errors.Is(err, kv.ErrMiss) || !errors.As(err, &damage) || damage.Key != k || damage.Where != ucmPath(dir, k) {
			t.Errorf("%v", err)
		}
		if has(t, s, k) {
			t.Error("still there")
		}
		if _, err := load(t, s, k); err != kv.ErrMiss {
			t.Error(err)
		}
		if st := s.Stats(); st.CorruptBlocks != int64(i+1) || st.QuarantinedBlocks != int64(i+1) {
			t.Errorf("%+v", st)
		}
	}
	if n := len(quarantined(t, dir)); n != 16 {
		t.Errorf("%d are kept", n)
	}
	must(t, save(t, s, 0, keys(20)...))
	for _, k := range keys(20) {
		loads(t, s, k, 0)
	}
}

// A damaged block is moved out of the way even if the quarantine was removed or is not a
// directory.
func TestNoQuarantine(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	place := filepath.Join(dir, ".kv3fs-quarantine")
	for i, spoil := range []func() error{
		func() error { return os.Remove(place) },
		func() error { return errors.Join(os.RemoveAll(place), os.WriteFile(place, nil, 0o600)) },
	} {
		must(t, save(t, s, 0, key(1)))
		must(t, spoil())
		must(t, os.WriteFile(ucmPath(dir, key(1)), content(key(2), 0), 0o600))
		if _, err := load(t, s, key(1)); !errors.Is(err, kv.ErrCorrupt) {
			t.Error(err)
		}
		if n := s.Stats().QuarantinedBlocks; has(t, s, key(1)) || n != int64(i+1) {
			t.Errorf("still there; %d are put aside", n)
		}
	}
	must(t, save(t, s, 0, key(1)))
	loads(t, s, key(1), 0)
}

// An undamaged block has the name of another one, as after a repair of the file system.
func TestSwappedBlocks(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1), key(2)))
	must(t, s.Close())
	must(t, os.Rename(ucmPath(dir, key(1)), ucmPath(dir, key(2))))
	s = open(t, in(dir))
	if _, err := load(t, s, key(2)); !errors.Is(err, kv.ErrCorrupt) {
		t.Error(err)
	}
}

// Damage to a checksum makes its block a miss, and no other block.
func TestDamagedSums(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, keys(20)...))
	must(t, s.Close())
	logs, err := filepath.Glob(filepath.Join(dir, ".kv3fs-sums", "*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	raw, err := os.ReadFile(logs[0])
	must(t, err)
	for at := 0; at < len(raw); at += 37 {
		flipped := append([]byte(nil), raw...)
		flipped[at] ^= 0x10
		must(t, os.WriteFile(logs[0], flipped, 0o644))
		s := open(t, in(dir))
		missed := 0
		for _, k := range keys(20) {
			if !has(t, s, k) {
				misses(t, s, k)
				missed++
				continue
			}
			loads(t, s, k, 0)
		}
		if st := s.Stats(); st.CorruptBlocks > 0 || st.UnverifiedShards > 0 || missed > 1 {
			t.Fatalf("byte %d: %d blocks are missed, %+v", at, missed, st)
		}
		must(t, s.Close())
	}
}

// When the disk is full, saves fail with ErrFull, and nothing half-written stays.
func TestFullDisk(t *testing.T) {
	dir := mountSmall(t, 256<<10)
	o := in(dir)
	s := open(t, o)
	var failed kv.Key
	stored := 0
	for i := range 100 {
		err := save(t, s, 0, key(i))
		if err == nil {
			stored++
			continue
		}
		if !errors.Is(err, kv.ErrFull) {
			t.Fatal(err)
		}
		failed = key(i)
		break
	}
	if stored == 0 || failed == (kv.Key{}) {
		t.Fatalf("%d stored, failed at %s", stored, failed)
	}
	for i := range stored {
		loads(t, s, key(i), 0)
	}
	if has(t, s, failed) {
		t.Error("part of the block is there")
	}
	eventually(t, "no temporary file is left", func() bool {
		left, err := os.ReadDir(filepath.Join(dir, ".kv3fs-temp"))
		return err == nil && len(left) == 0
	})
	for i := range 3 {
		must(t, os.Remove(ucmPath(dir, key(i))))
	}
	// Removed blocks that are open keep their space until they are closed.
	must(t, s.Close())
	s = open(t, o)
	must(t, save(t, s, 0, failed))
	loads(t, s, failed, 0)
}

// A block whose shards stop coming is given up. Files that a dead writer has left are
// removed when they are old, and no others are.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	temp := filepath.Join(dir, ".kv3fs-temp")
	must(t, os.MkdirAll(temp, 0o755))
	old := time.Now().Add(-48 * time.Hour)
	stale := key(1).String() + ".0000000a-12"
	for name, at := range map[string]time.Time{
		stale: old, key(1).String() + ".0000000a-13": time.Now(), key(1).String(): old, "notes.txt": old,
	} {
		must(t, os.WriteFile(filepath.Join(temp, name), []byte("x"), 0o644))
		must(t, os.Chtimes(filepath.Join(temp, name), at, at))
	}
	o := in(dir)
	o.Timeout = 50 * time.Millisecond
	s := open(t, o)
	shards := layout.ByBlock([]kv.Key{key(5)}, [][]byte{content(key(5), 0)})
	task, err := s.Save(t.Context(), shards[:2])
	must(t, err)
	must(t, task.Wait(t.Context()))
	eventually(t, "the unfinished block and the stale file are gone", func() bool {
		left, err := os.ReadDir(temp)
		return err == nil && len(left) == 3 && s.Stats().DroppedBlocks == 1
	})
	if _, err := os.Stat(filepath.Join(temp, stale)); !os.IsNotExist(err) {
		t.Error("the stale file is there")
	}
	task, err = s.Save(t.Context(), shards[2:])
	must(t, err)
	must(t, task.Wait(t.Context()))
	if has(t, s, key(5)) {
		t.Error("a block is found though one of its halves was given up")
	}
}

// After ten thousand corruptions of blocks that were written once, no load returns a wrong
// byte.
func TestCorruptions(t *testing.T) {
	const atOnce = 250
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	small := kv.Layout{BlockBytes: 96, ShardBytes: 32}
	all := keys(atOnce)
	var bufs, want [][]byte
	for _, k := range all {
		want = append(want, content(k, 0)[:small.BlockBytes])
		bufs = append(bufs, make([]byte, small.BlockBytes))
	}
	dir := t.TempDir()
	o := in(dir)
	o.Layout = small
	s := open(t, o)
	run := func(do func(context.Context, []kv.Shard) (*kv.Task, error), keys []kv.Key, bufs [][]byte) *kv.Task {
		task, err := do(t.Context(), small.ByBlock(keys, bufs))
		must(t, err)
		<-task.Done()
		return task
	}
	lost := 0
	for round := range rounds {
		must(t, run(s.Save, all, want).Err())
		for n := range atOnce {
			ucmtest.DamageOne(t, ucmPath(dir, all[n]), ucmPath(dir, all[(n+1+round)%atOnce]), uint64(round*atOnce+n))
		}
		for i, err := range run(s.Load, all, bufs).All() {
			b, at := i/small.Shards(), int64(i%small.Shards())*small.ShardBytes
			switch {
			case err == nil && !bytes.Equal(bufs[b][at:at+small.ShardBytes], want[b][at:at+small.ShardBytes]):
				t.Fatalf("round %d: wrong bytes", round)
			case err != nil && !errors.Is(err, kv.ErrMiss):
				t.Fatalf("round %d: %v", round, err)
			case err != nil && i%small.Shards() == 0:
				lost++
			}
		}
	}
	if lost < rounds*atOnce/4 {
		t.Errorf("%d corruptions made %d blocks disappear: did they damage any?", rounds*atOnce, lost)
	}
}
