package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/files"
	"github.com/kv3fs/kv3fs/kvstore/kv"
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
			t.Errorf("%s: there is a store", want)
		}
	}
}

// Directories that this store, UCM's or a new file system made are taken.
func TestAccepted(t *testing.T) {
	for _, name := range []string{"abc", "data", "lost+found", ".kv3fs-sums"} {
		dir := t.TempDir()
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		open(t, in(dir))
	}
}

// A user who may read and not write is told so, and what to do.
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
