package rights

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// No thread of a daemon may exceed a user's quota, also after it acted for users. In a
// container whose root may not either, this is always so.
func TestQuotasAreObeyed(t *testing.T) {
	d := serve(t, hostile.NewData(t))
	u := hostile.NewUser(t)
	for _, s := range []step{{Op: "create", Path: filepath.Join(d.Mount, "f"), N: 0o666}, {Op: "ring-write", Path: filepath.Join(d.Mount, "f")}} {
		if got := do(t, u, d.Mount, s)[0]; got.Errno != 0 {
			t.Errorf("%s: %v", s.Op, got)
		}
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", d.PID()))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %v: %v", threads, err)
	}
	seen := 0
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		_, after, _ := strings.Cut(string(status), "CapEff:")
		effective, err := strconv.ParseUint(strings.Fields(after)[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		if effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
			t.Errorf("%s: capabilities %x", path, effective)
		}
	}
	if seen == 0 {
		t.Error("no thread was looked at")
	}
}

// ext4 returns a directory of a new disk of that size, which keeps a part of it for the
// super-user and which every user can write.
func ext4(t *testing.T, sizeBytes int64, reservedPercent string) string {
	t.Helper()
	daemontest.NeedRoot(t)
	dir := daemontest.NewDir(t)
	image, disk := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(sizeBytes); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-m", reservedPercent, "-O", "^has_journal", image},
		{"mount", "-o", "loop", image, disk},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: a disk of our own: %s: %v: %s", command[0], err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
			_ = unix.Unmount(disk, unix.MNT_DETACH)
		}
	})
	data := filepath.Join(disk, "data")
	if err := os.Mkdir(data, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	return data
}

// A user who has filled the disk directly gets no further through the mount and its rings,
// whatever else is open. Root still can, as it can directly.
func TestReserve(t *testing.T) {
	if testing.Short() {
		t.Skip("fills disks")
	}
	for _, route := range routes {
		t.Run(route.name, func(t *testing.T) {
			data := ext4(t, 64<<20, "20")
			d := serve(t, data, route.flags...)
			u := hostile.NewUser(t)
			on := func(name string) string { return filepath.Join(d.Mount, name) }
			for _, name := range []string{"mine", "ring", "shared", "roots", "allocated"} {
				path := filepath.Join(data, name)
				if err := os.WriteFile(path, []byte("x"), 0o666); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			const all = 256 << 20
			direct := do(t, u, "", step{Op: "fill", Path: filepath.Join(data, "ballast"), N: all})[0]
			if direct.Errno != unix.ENOSPC || direct.N < 16<<20 {
				t.Fatalf("directly: %v", direct)
			}

			// Root has one file open, as a daemon of an engine may.
			fd, err := unix.Open(on("shared"), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			steps := []step{
				{Op: "fill", Path: on("mine"), N: all},
				{Op: "ring-fill", Path: on("ring"), N: all},
				{Op: "fill", Path: on("shared"), N: all},
				{Op: "fill", Path: on("new"), N: all},
				{Op: "mkdirs", Path: d.Mount, N: 100},
				{Op: "fallocate", Path: on("allocated"), N: 4 << 20},
				{Op: "keep-size", Path: on("allocated"), N: all},
				{Op: "fill", Path: on("mine"), N: all},
			}
			for i, got := range do(t, u, d.Mount, steps...) {
				const few = 64 << 10 // what the file system rounds up for the writer
				if got.Errno != unix.ENOSPC || got.N > few {
					t.Errorf("the user after ENOSPC: %s: %v", steps[i].Op, got)
				}
			}

			// What needs no space works as before.
			if got := do(t, u, d.Mount, step{Op: "rename", Path: on("mine"), Other: on("renamed")})[0]; got.Errno != 0 {
				t.Errorf("rename: %v", got)
			}

			// A user has one file open, and root writes to it, too.
			holder := hostile.Start(t, u, "steps", stepsArgs{Mount: d.Mount, File: writeSteps(t, []step{{Op: "hold", Path: on("roots")}, {Op: "wait"}})})
			var ready string
			holder.Await(&ready)
			const much = 1 << 20
			steps = []step{
				{Op: "fill", Path: on("roots"), N: much},
				{Op: "fill", Path: on("shared"), N: much},
				{Op: "fill", Path: on("new of root"), N: much},
				{Op: "ring-fill", Path: on("ring"), N: much},
			}
			for i, got := range do(t, root, d.Mount, steps...) {
				if got != (outcome{N: much}) {
					t.Errorf("root: %s %s: %v", steps[i].Op, steps[i].Path, got)
				}
			}
			if err := holder.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
