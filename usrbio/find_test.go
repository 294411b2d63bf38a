package usrbio

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFindMountPicks(t *testing.T) {
	const (
		root   = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
		hf3fs  = "43 22 0:40 / /mnt/3fs rw,nosuid,nodev,relatime - fuse.hf3fs hf3fs.stage rw,user_id=0,max_read=1048576\n"
		nested = "44 43 0:41 / /mnt/3fs/inner rw shared:7 master:2 - fuse.hf3fs hf3fs.two rw\n"
		blank  = `45 22 0:42 / /mnt/my\040own\134fs rw - fuse.hf3fs hf3fs.blank rw` + "\n"
		sub    = "46 22 0:40 /a/b /data rw - fuse.hf3fs hf3fs.stage rw\n"
		subV   = "47 46 0:40 /3fs-virt /data/3fs-virt rw - fuse.hf3fs hf3fs.stage rw\n"
		other  = "48 22 0:43 / /mnt/3fs rw - fuse.sshfs me@host: rw\n"
		atRoot = "49 22 0:44 / / rw - fuse.hf3fs hf3fs.root rw\n"
		broken = "\n43 22\n43 22 0:40 / /mnt/3fs rw\n - fuse.hf3fs hf3fs rw\n43 22 0:40 / /mnt/3fs rw - fuse.hf3fs\n"
	)
	everywhere := []string{"/mnt/3fs", "/mnt/3fs/inner", `/mnt/my own\fs`, "/"}
	for _, c := range []struct {
		name, table, path string
		virt              []string // directories that have a 3fs-virt
		anyType           bool
		want              string
	}{
		{"file on the mount", root + hf3fs, "/mnt/3fs/a/b", everywhere, false, "/mnt/3fs"},
		{"the mount point itself", root + hf3fs, "/mnt/3fs", everywhere, false, "/mnt/3fs"},
		{"a sibling with a longer name", root + hf3fs, "/mnt/3fs2/a", everywhere, false, ""},
		{"elsewhere", root + hf3fs, "/home/me", everywhere, false, ""},
		{"deepest of two", root + hf3fs + nested, "/mnt/3fs/inner/x", everywhere, false, "/mnt/3fs/inner"},
		{"deepest of two, other order", root + nested + hf3fs, "/mnt/3fs/inner/x", everywhere, false, "/mnt/3fs/inner"},
		{"outer of two", root + nested + hf3fs, "/mnt/3fs/in", everywhere, false, "/mnt/3fs"},
		{"escapes in the table", root + blank, `/mnt/my own\fs/x`, everywhere, false, `/mnt/my own\fs`},
		{"no 3fs-virt", root + hf3fs, "/mnt/3fs/a", nil, false, ""},
		{"part of the tree, without 3fs-virt", root + sub, "/data/x", nil, false, ""},
		{"part of the tree, 3fs-virt beside it", root + sub + subV, "/data/x", nil, false, "/data"},
		{"other type", root + other, "/mnt/3fs/a", everywhere, false, ""},
		{"other type, allowed", root + other, "/mnt/3fs/a", []string{"/mnt/3fs"}, true, "/mnt/3fs"},
		{"mounted at the root", atRoot, "/a", everywhere, false, "/"},
		{"lines cut short", broken, "/mnt/3fs/a", everywhere, false, ""},
		{"no table", "", "/mnt/3fs/a", everywhere, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			exists := func(p string) bool {
				for _, dir := range c.virt {
					if p == filepath.Join(dir, "3fs-virt") {
						return true
					}
				}
				return false
			}
			if got := findMount(c.table, c.path, c.anyType, exists); got != c.want {
				t.Errorf("findMount(%q) = %q, want %q", c.path, got, c.want)
			}
		})
	}
}

// findMount does not look into a mount that does not hold the path: it may hang.
func TestFindMountLeavesOthersAlone(t *testing.T) {
	const table = "43 22 0:40 / /mnt/hung rw - fuse.hf3fs hf3fs.stage rw\n"
	findMount(table, "/mnt/other/x", false, func(p string) bool {
		t.Errorf("looked for %s", p)
		return false
	})
}

func TestFindMountOfThisMachine(t *testing.T) {
	if _, err := FindMount(bg, filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing path: %v", err)
	}
	if mp, err := FindMount(bg, t.TempDir()); !errors.Is(err, ErrNotMounted) {
		t.Errorf("temporary directory: %q, %v", mp, err)
	}
	if _, err := Open(bg, t.TempDir()); !errors.Is(err, ErrNotMounted) {
		t.Errorf("open: %v", err)
	}
	// With any type allowed, a directory with a 3fs-virt still needs a mount.
	t.Setenv(envAnyType, "yes")
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, virtDir), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if mp, err := FindMount(bg, "."); !errors.Is(err, ErrNotMounted) {
		t.Errorf("directory that is not a mount: %q, %v", mp, err)
	}
}

func TestIsHF3FSOfOthers(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if is, err := IsHF3FS(bg, f); is || err != nil {
		t.Error("a temporary directory is a 3FS:", is, err)
	}
	f.Close()
	if is, err := IsHF3FS(bg, f); is || err != nil {
		t.Error("a closed file is on a 3FS:", is, err)
	}
	m, _ := testMount(t)
	g, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := m.Register(bg, g); !errors.Is(err, ErrNotMounted) {
		t.Errorf("register: %v", err)
	}
}

func FuzzFindMount(f *testing.F) {
	f.Add("43 22 0:40 / /mnt/3fs rw - fuse.hf3fs hf3fs.stage rw\n", "/mnt/3fs/x")
	f.Add(`45 22 0:42 / /mnt/my\040o\13 rw - fuse.hf3fs a b`, "/mnt/my o")
	f.Fuzz(func(t *testing.T, table, path string) {
		mp := findMount(table, path, false, func(string) bool { return true })
		if mp != "" && !within(path, mp) {
			t.Errorf("%q is not within %q", path, mp)
		}
	})
}
