package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestBeneathJudgement(t *testing.T) {
	for _, c := range []struct {
		what   string
		dir    host.Beneath
		daemon uint32
		status Status
		found  string
	}{
		{"root's", host.Beneath{Mode: 0o755}, 0, OK, "no user but root"},
		{"the daemon's", host.Beneath{Mode: 0o755, UID: 1000}, 1000, OK, "no user but root"},
		{"another user's", host.Beneath{Mode: 0o755, UID: 1000}, 0, Warning, "user 1000"},
		{"a user's, mode 0555", host.Beneath{Mode: 0o555, UID: 1000}, 0, OK, "no user"},
		{"a group's", host.Beneath{Mode: 0o775}, 0, Warning, "its group"},
		{"everybody's", host.Beneath{Mode: 0o777}, 0, Warning, "every user (mode 0777)"},
		{"sealed", host.Beneath{Mode: 0o777, Sealed: true}, 0, OK, "nobody"},
		{"with files", host.Beneath{Sealed: true, Names: []string{"a", "b\n", "c", "d", "e"}}, 0, Warning, `(a, "b\n", c, d, ...)`},
	} {
		for _, mounted := range []bool{true, false} {
			f := judgeBeneath("/m/p", c.dir, mounted, c.daemon)
			want(t, c.what, f, "mount.beneath", c.status)
			if !strings.Contains(f.Found, c.found) || strings.Contains(f.Found, "nothing is mounted") == mounted {
				t.Errorf("%s: %+v", c.what, f)
			}
			if f.Status == Warning && strings.Contains(f.Fix, "unshare") != mounted {
				t.Errorf("%s: fix %q", c.what, f.Fix)
			}
		}
	}
}

// The doctor sees what a mount covers although that hangs, and its fix for it works.
func TestBeneath(t *testing.T) {
	daemontest.NeedRoot(t)
	point := mountStuck(t, fuse.MountOptions{Name: "hf3fs", FsName: "hf3fs.stuck"})
	beneath := func() Finding {
		t.Helper()
		mounts, err := host.Local().Mounts()
		if err != nil {
			t.Fatal(err)
		}
		all := checkBeneath(t.Context(), local(), point, mounts)
		if len(all) != 1 {
			t.Fatalf("%+v", all)
		}
		return all[0]
	}
	run := func(line string) string {
		t.Helper()
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
		return string(out)
	}
	run(inBeneath(point, true, "chmod 755 %s"))
	want(t, "open to root", beneath(), "mount.beneath", OK)
	run(inBeneath(point, true, "chmod 777 %s"))
	f := beneath()
	want(t, "open to all", f, "mount.beneath", Warning)
	fix, _, _ := strings.Cut(f.Fix, " && chattr") // an immutable directory could not be removed
	run(fix + "' " + quote(filepath.Dir(point)) + " " + quote(filepath.Base(point)))
	want(t, "closed", beneath(), "mount.beneath", OK)
	run(inBeneath(point, true, "touch %s/lost"))
	f = beneath()
	want(t, "with a file", f, "mount.beneath", Warning)
	if out := run(f.Fix); !strings.Contains(out, "lost") {
		t.Errorf("%s printed %q", f.Fix, out)
	}
}

func TestBeneathNothingMounted(t *testing.T) {
	dir := t.TempDir()
	if all := checkBeneath(t.Context(), local(), dir+"/none", nil); len(all) > 0 {
		t.Errorf("nothing there: %+v", all)
	}
	if err := os.WriteFile(dir+"/lost", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if all := checkBeneath(t.Context(), local(), dir+"/lost", nil); len(all) > 0 {
		t.Errorf("a file: %+v", all)
	}
	part := []host.Mount{{Point: dir + "/3fs-virt", Type: host.HF3FSType}}
	if all := checkBeneath(t.Context(), local(), dir, part); len(all) > 0 {
		t.Errorf("a part of a mount: %+v", all)
	}
	f := byID(t, checkBeneath(t.Context(), local(), dir, nil), "mount.beneath")
	want(t, "a directory with a file", f, "mount.beneath", Warning)
}
