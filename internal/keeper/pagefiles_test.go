package keeper

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// filesOf are the page files of directories. They note what has vanished.
type filesOf struct {
	dirs     []string
	vanished []string
}

func (p *filesOf) Dirs() []string                       { return p.dirs }
func (p *filesOf) Forget(context.Context, string) error { return nil }
func (p *filesOf) Vanished(at string)                   { p.vanished = append(p.vanished, at) }

// Page files that vanish before the first scan has got to their directory are reported, and so is what may be one.
func TestPageFilesVanishBeforeTheScan(t *testing.T) {
	const name = "hicache.0.bin"
	opts := options(t.TempDir())
	files := &filesOf{dirs: []string{"a/b", "later"}}
	opts.PageFiles = files
	put(t, opts.Dir, "a/b/"+name, 1)
	put(t, opts.Dir, "other/"+name, 1)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	key := func(rel string) FileKey { return keyOf(t, filepath.Join(opts.Dir, rel)) }
	want := func(what string, all ...string) {
		t.Helper()
		if !slices.Equal(files.vanished, all) {
			t.Errorf("%s: %q has vanished, want %q", what, files.vanished, all)
		}
		files.vanished = nil
	}
	k.Removed(key("a/b/"+name), key("a/b"), name, true)
	want("a page file is removed", "a/b/"+name)
	k.Renamed(key("a/b/"+name), key("a/b"), name, key("."), "away")
	want("a page file is renamed", "a/b/"+name)
	k.Removed(key("a/b/"+name), key("a/b"), "any", true)
	want("another file is removed")
	k.Removed(key("a/b/"+name), FileKey{}, "", true)
	want("a removed file is closed")
	k.Renamed(key("a"), key("."), "a", key("."), "moved")
	want("a directory above is renamed", "a")
	k.Renamed(key("other"), key("."), "other", key("."), "moved")
	want("another directory is renamed")
	k.Removed(key("other/"+name), key("other"), name, true)
	want("a page file is removed from a directory that nobody knows", "a/b", "later")
	must(t, os.Mkdir(filepath.Join(opts.Dir, "later"), 0o700)) // not through the mount
	k.Renamed(key("later"), key("."), "later", key("."), "moved")
	want("a directory is renamed that nobody knew", "later")
}
