package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/host"
)

// The mount table determines which mount is examined. The mount points here are ordinary
// directories.
func TestChooseMount(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/sub", "b", "nfs", "part/3fs-virt", "plain"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir+"/a", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	line := func(name, kind string) string {
		return fmt.Sprintf("43 22 0:40 / %s/%s rw - %s hf3fs.stage rw\n", dir, name, kind)
	}
	root := "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
	one := root + line("a", host.HF3FSType)
	two := one + line("b", host.HF3FSType) + line("nfs", "nfs4")
	for _, c := range []struct {
		what, table, requested, point string
		status                        Status
	}{
		{"the only one", one, "", "/a", OK},
		{"none", root, "", "", Failure},
		{"another on it", one + line("a/sub", "ext4"), "/a/sub", "", Failure},
		{"one of two", two, "/b", "/b", OK},
		{"one of two, unsaid", two, "", "/a", Note},
		{"with a slash", one, "/a/", "/a", OK},
		{"a link to it", one, "/link", "/a", Warning},
		{"a directory on it", one, "/a/sub", "/a", Note},
		{"another type", two, "/nfs", "", Failure},
		{"no mount", one, "/plain", "", Failure},
		{"nothing there", one, "/none", "", Failure},
		{"covered", one + line("a", "nfs4"), "/a", "", Failure},
		{"a container's part", root + line("part/3fs-virt", host.HF3FSType), "", "/part", OK},
	} {
		o := local()
		o.Host = fixture(t, map[string]string{"/proc/self/mountinfo": c.table})
		mounts, err := o.Host.Mounts()
		if err != nil {
			t.Fatal(err)
		}
		requested := c.requested
		if requested != "" {
			requested = dir + requested
		}
		point, f := chooseMount(t.Context(), o, requested, nil, probeMounts(t.Context(), o, host.HF3FS(mounts)), mounts)
		if strings.TrimPrefix(point, dir) != c.point || f.Status != c.status {
			t.Errorf("%s: %q, %v, %+v; want %q, %v", c.what, point, f.Status, f, c.point, c.status)
		}
	}
}

// If no mount is requested, the one with the engine's files is chosen, otherwise the first
// that answers.
func TestChooseAmongSeveral(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b/3fs-virt/iovs", "c/3fs-virt/iovs", "c/kv"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir+"/c/kv", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	table := "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
	for i, name := range []string{"a", "b", "c"} { // a does not answer: it is not there
		table += fmt.Sprintf("%d 22 0:%d / %s/%s rw - %s x rw\n", 43+i, 43+i, dir, name, host.HF3FSType)
	}
	o := on(fixture(t, map[string]string{"/proc/self/mountinfo": table}))
	mounts, err := o.Host.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	known := probeMounts(t.Context(), o, host.HF3FS(mounts))
	for path, point := range map[string]string{"": "/b", "/c/kv/none": "/c", "/b": "/b", "/link/none": "/c", "/a/x": "/a", "/x": "/b"} {
		var paths []string
		if path != "" {
			paths = []string{dir + path}
		}
		if got, f := chooseMount(t.Context(), o, "", paths, known, mounts); got != dir+point {
			t.Errorf("%q: %s, %+v; want %s", path, got, f, point)
		}
	}
}

func TestQuote(t *testing.T) {
	for path, quoted := range map[string]string{"/mnt/3fs": "/mnt/3fs", "/a b": "'/a b'", "/it's": `'/it'\''s'`, "": "''", "/a;rm": "'/a;rm'"} {
		if got := quote(path); got != quoted {
			t.Errorf("%q is quoted %s, want %s", path, got, quoted)
		}
	}
}

// On a host without any facts, no check guesses OK.
func TestBareHost(t *testing.T) {
	o := local()
	o.Host = fixture(t, nil)
	_, _, all := checkMounts(t.Context(), o, "", nil, false)
	if len(all) != 1 || all[0].Status != Warning {
		t.Errorf("no mountinfo: %+v", all)
	}
	if slices.ContainsFunc(checkLimits(t.Context(), o, checkEngine(t.Context(), o).need), func(f Finding) bool { return f.Status == OK }) {
		t.Error("unknown limits are reported as OK")
	}
}
