package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func TestRefused(t *testing.T) {
	six := 6
	home := t.TempDir()
	must(t, os.WriteFile(filepath.Join(home, "thesis.tex"), nil, 0o600))
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o600))
	dir := t.TempDir()
	for want, o := range map[string]files.Options{
		"storage_backends is empty":  {Layout: layout},
		"twice":                      {Layout: layout, Dirs: []string{dir, dir + "/"}},
		"there is no " + dir + "/no": {Layout: layout, Dirs: []string{dir + "/no/where"}},
		"directory that can be":      {Layout: layout, Dirs: []string{file}},
		"thesis.tex":                 {Layout: layout, Dirs: []string{home}},
		"data_dir_shard_bytes is 6":  {Layout: layout, Dirs: []string{dir}, DirShardDigits: &six},
		"block_size":                 {Dirs: []string{dir}},
		"checksums":                  {Layout: layout, Dirs: []string{dir}, Checksums: "sometimes"},
		"timeout_ms":                 {Layout: layout, Dirs: []string{dir}, Timeout: -1},
	} {
		s, err := files.Open(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, got %v", want, err)
		}
		if s != nil {
			t.Errorf("%s: Open returned a store", want)
		}
	}
}

// Directories that have only what this store, UCM's or a new file system creates are
// accepted.
func TestAccepted(t *testing.T) {
	for _, name := range []string{"abc", "data", "lost+found", ".kv3fs-sums"} {
		dir := t.TempDir()
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		open(t, in(dir))
	}
}

// The error for a directory that was removed names it. After it is created again,
// everything works as before.
func TestRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv")
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1)))
	must(t, os.RemoveAll(dir))
	if err := save(t, s, 0, key(2)); err == nil || !strings.Contains(err.Error(), dir+" is gone: make it again") {
		t.Error(err)
	}
	if has(t, s, key(1)) {
		t.Error("still there")
	}
	other := open(t, in(dir)) // makes it
	must(t, save(t, s, 0, key(1), key(2)))
	loads(t, other, key(1), 0)
	loads(t, other, key(2), 0)
	if n := other.Stats().UnverifiedShards; n > 0 {
		t.Errorf("%d shards have no checksum", n)
	}
}

// A process that runs out of open files is told which limit to raise.
func TestTooManyOpenFiles(t *testing.T) {
	s := open(t, in(t.TempDir()))
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 100
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	var bufs [][]byte
	for _, k := range keys(200) {
		bufs = append(bufs, content(k, 0))
	}
	task, err := s.Save(t.Context(), layout.ByLayer(keys(200), bufs))
	must(t, err)
	if err := task.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "ulimit -n") {
		t.Error(err)
	}
	eventually(t, "a block can be saved", func() bool { return save(t, s, 0, key(300)) == nil })
	loads(t, s, key(300), 0)
}

// For a user who may read but not write, the error says so, and what to do.
func TestNotWritable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o555))
	t.Cleanup(func() { os.Chmod(dir, 0o755) })
	if _, err := files.Open(files.Options{Dirs: []string{dir}, Layout: kv.Layout{BlockBytes: 1, ShardBytes: 1}}); err == nil || !strings.Contains(err.Error(), "give it the right") {
		t.Error(err)
	}
}
