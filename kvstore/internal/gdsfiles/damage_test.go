package gdsfiles

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// corruptionsEnv is how many corruptions TestCorruptions tries. The nightly run sets it to
// 100000.
const corruptionsEnv = "KV3FS_CORRUPTIONS"

// Damage to data and side files, which have checksums, costs blocks and never makes a wrong byte.
func TestCorruptions(t *testing.T) {
	most := 1000
	if s := os.Getenv(corruptionsEnv); s != "" {
		var err error
		if most, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	first := seed.New(t)
	const blocks = 50
	dir := t.TempDir()
	s := open(t, options(dir))
	var all []kv.Key
	var paths []string
	for n := range blocks {
		key := keys.Int64Key(int64(n-blocks/2) * 1_000_003)
		f, err := newFormat(options(dir), false)
		if err != nil {
			t.Fatal(err)
		}
		at, err := f.Place(key)
		if err != nil {
			t.Fatal(err)
		}
		all, paths = append(all, key), append(paths, filepath.Join(dir, at.Dir, at.Name))
	}
	missed := 0
	for n := 0; n < most; n += blocks {
		save(t, s, all...)
		for k, path := range paths {
			i := first + uint64(n+k)
			victim, other := path, paths[i/8%blocks]
			if i%5 == 0 {
				victim, other = path+gds.SideSuffix, other+gds.SideSuffix
			}
			ucmtest.DamageOne(t, victim, other, i)
		}
		for _, key := range all {
			if load(t, s, key) != nil { // it fails at a wrong byte
				missed++
			}
		}
	}
	stats := s.Stats()
	if missed < most/2 || stats.CorruptBlocks == 0 || stats.UnverifiedShards > 0 {
		t.Errorf("%d of %d blocks were missed: %+v", missed, most, stats)
	}
	t.Logf("%d corruptions: %d blocks missed, 0 wrong bytes", most, missed)
}

// What a process leaves that dies between two renames, or while it writes, is a miss, and is
// removed when it is old.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	s := open(t, options(dir))
	all := []kv.Key{keys.Int64Key(5), keys.Int64Key(77), keys.Int64Key(123456), keys.Int64Key(-654321), keys.Int64Key(8)}
	save(t, s, all...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := newFormat(options(dir), false)
	if err != nil {
		t.Fatal(err)
	}
	path := func(key kv.Key) string {
		at, err := f.Place(key)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, at.Dir, at.Name)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range all[:3] { // only data
		must(os.Remove(path(key) + gds.SideSuffix))
	}
	young(t, path(all[1]))
	must(os.Remove(path(all[3]))) // only the side file
	for _, name := range []string{path(all[4]), path(all[4]) + gds.SideSuffix} {
		must(os.WriteFile(name+".tmp0123abcd", nil, 0o644))
		must(os.WriteFile(name+".tmp4567abcd", nil, 0o644))
		young(t, name+".tmp4567abcd")
	}
	stranger := filepath.Join(filepath.Dir(path(all[2])), "notes.txt")
	must(os.WriteFile(stranger, nil, 0o644))

	tick(t, dir)
	s = open(t, sweeping(dir))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(dir, "*", "*.tmp0123abcd"))
		must(err)
		if _, err := os.Stat(path(all[2])); len(left) == 0 && os.IsNotExist(err) && os.IsNotExist(statErr(path(all[3])+gds.SideSuffix)) && os.IsNotExist(statErr(path(all[0]))) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("orphans are left")
		}
	}
	for _, name := range []string{path(all[1]), path(all[4]), path(all[4]) + ".tmp4567abcd", stranger} {
		must(statErr(name))
	}
	for i, key := range all {
		if err := load(t, s, key); (err == nil) != (i == 4) || has(t, s, key) != (i == 4) {
			t.Errorf("block %d: %v", i, err)
		}
	}
	save(t, s, all...)
	for _, key := range all {
		must(load(t, s, key))
	}
}

// sweeping are the options of a store that takes for old what was there before it was opened.
func sweeping(dir string) Options {
	o := options(dir)
	o.SweepAge = 1
	return o
}

// young makes a file younger than everything else.
func young(t *testing.T, path string) {
	t.Helper()
	later := time.Now().Add(time.Hour)
	must(t, os.Chtimes(path, later, later))
}

// tick waits until the clock of a file system has gone on.
func tick(t *testing.T, dir string) {
	t.Helper()
	probe := filepath.Join(dir, ".tick")
	var first time.Time
	for {
		must(t, os.WriteFile(probe, []byte("x"), 0o644))
		info, err := os.Stat(probe)
		must(t, err)
		if first.IsZero() {
			first = info.ModTime()
		} else if info.ModTime().After(first) {
			must(t, os.Remove(probe))
			return
		}
	}
}

func statErr(path string) error {
	_, err := os.Stat(path)
	return err
}
