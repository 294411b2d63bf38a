package host

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// fixture returns a host made of files.
func fixture(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Host{Root: root, LookupEnv: func(string) (string, bool) { return "", false }}
}

func TestKernel(t *testing.T) {
	for release, want := range map[string]struct{ major, minor int }{
		"6.18.44-generic":       {6, 18},
		"5.10.0-28-amd64":       {5, 10},
		"6.9":                   {6, 9},
		"6.12-rc3+":             {6, 12},
		"4.18.0-553.el8.x86_64": {4, 18},
	} {
		k, err := fixture(t, map[string]string{"/proc/sys/kernel/osrelease": release + "\n"}).Kernel()
		if err != nil || k.Major != want.major || k.Minor != want.minor || k.Release != release {
			t.Errorf("%s: %+v, %v", release, k, err)
		}
	}
	for _, release := range []string{"", "six", "6", "6.x", "."} {
		if k, err := parseKernel(release); err == nil {
			t.Errorf("%q was read as %+v", release, k)
		}
	}
	if k := (Kernel{Major: 6, Minor: 9}); !k.AtLeast(6, 9) || !k.AtLeast(5, 20) || k.AtLeast(6, 10) || k.AtLeast(7, 0) {
		t.Error("AtLeast is wrong for 6.9")
	}
}

const mountinfo = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw,size=12k
24 23 0:21 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=65536k
43 22 0:40 / /mnt/3fs rw,nosuid,nodev,relatime - fuse.hf3fs hf3fs.stage rw,user_id=0,allow_other
44 22 0:41 / /mnt/with\040blank ro - xfs /dev/sdb rw
45 22 0:42 / /mnt/3fs rw - fuse.hf3fs hf3fs.second rw
a line of nonsense
46 22 0:43 / /short
`

func TestMounts(t *testing.T) {
	mounts, err := fixture(t, map[string]string{"/proc/self/mountinfo": mountinfo}).Mounts()
	if err != nil || len(mounts) != 6 {
		t.Fatalf("%d mounts, %v", len(mounts), err)
	}
	if m, ok := At(mounts, "/mnt/3fs"); !ok || m.Source != "hf3fs.second" || m.Device != "0:42" {
		t.Errorf("the topmost at /mnt/3fs: %+v", m)
	}
	if _, ok := At(mounts, "/mnt"); ok {
		t.Error("something is mounted at /mnt")
	}
	for path, want := range map[string]string{"/": "/", "/mnt/3fs2": "/", "/mnt/3fs/a/b": "/mnt/3fs", "/mnt/with blank/x": "/mnt/with blank", "/dev/shm": "/dev/shm"} {
		if m, ok := Holding(mounts, path); !ok || m.Point != want {
			t.Errorf("%s is on %q, want %q", path, m.Point, want)
		}
	}
	blank, _ := At(mounts, "/mnt/with blank")
	if !blank.HasOption("ro") || !blank.HasOption("rw") || blank.HasOption("r") {
		t.Errorf("options of %+v", blank)
	}
}

// Where a directory is mounted on itself, mounts in it are in the table once more, below the one that covers them.
func TestStack(t *testing.T) {
	line := func(id, parent int, point string) string {
		return fmt.Sprintf("%d %d 0:%d / %s rw - x x rw\n", id, parent, id, point)
	}
	table := line(10, 1, "/") + line(20, 10, "/k") + line(31, 20, "/k/p") + line(30, 10, "/k/p") + line(41, 31, "/k/p") + line(40, 30, "/k/p") + line(50, 41, "/k/p/virt") + line(60, 10, "/other/p")
	for point, want := range map[string]string{"/": "10", "/k": "20", "/k/p": "31 41", "/k/p/virt": "50", "/k/p/vir": "", "/k/": "", "/none/p": "", "/other/p": "60", "": "10"} {
		var ids []string
		for _, m := range Stack(parseMountinfo(table), point) {
			ids = append(ids, m.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %q, want %q", point, got, want)
		}
	}
	for _, strange := range []string{"", line(1, 1, "/"), line(1, 2, "/") + line(2, 1, "/"), line(5, 4, "/a") + line(6, 5, "/a")} {
		_ = Stack(parseMountinfo(strange), "/a") // ends
	}
	if got := Stack(parseMountinfo(line(5, 4, "/a")+line(6, 5, "/a")), "/a"); len(got) != 2 {
		t.Errorf("without a root that is a mount: %+v", got)
	}
}

// HF3FS lists no mount that another one hides.
func TestHF3FS(t *testing.T) {
	const root = "10 1 8:1 / / rw - ext4 /dev/vda rw\n"
	line := func(id, parent int, point, kind string) string {
		return fmt.Sprintf("%d %d 0:%d / %s rw - %s x rw\n", id, parent, id, point, kind)
	}
	one := root + line(20, 10, "/mnt/a", HF3FSType)
	for _, c := range []struct{ what, table, points string }{
		{"none", root, ""},
		{"one", one, "/mnt/a"},
		{"two, in order", root + line(20, 10, "/mnt/b", HF3FSType) + line(21, 10, "/mnt/a", HF3FSType), "/mnt/b /mnt/a"},
		{"covered by another type", one + line(21, 20, "/mnt/a", "tmpfs"), ""},
		{"covered by another 3FS", one + line(21, 20, "/mnt/a", HF3FSType), "/mnt/a"},
		{"its parent covered", one + line(21, 10, "/mnt", "tmpfs"), ""},
		{"mounted again on the cover", one + line(21, 10, "/mnt", "tmpfs") + line(22, 21, "/mnt/a", HF3FSType), "/mnt/a"},
		{"something below it", one + line(21, 20, "/mnt/a/b", "tmpfs"), "/mnt/a"},
		{"its parent mounted later", line(20, 10, "/mnt/a", HF3FSType) + root, "/mnt/a"},
		{"moved onto a later one", root + line(20, 21, "/mnt/a", HF3FSType) + line(21, 10, "/mnt", "tmpfs"), "/mnt/a"},
		{"a container's part", root + line(20, 10, "/part/3fs-virt", HF3FSType), "/part"},
		{"parents in a cycle", "1 2 3 4 /x 6 - " + HF3FSType + " b\n2 1 3 4 /y 6 - c d\n3 9 3 4 / 6 - c d\n", ""},
	} {
		if got := strings.Join(HF3FS(parseMountinfo(c.table)), " "); got != c.points {
			t.Errorf("%s: %q, want %q", c.what, got, c.points)
		}
	}
}

const limitsTable = `Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            1024                 1048576              files     
Max locked memory         8388608              unlimited            bytes     
Max nice priority         0                    0                    
`

func TestLimits(t *testing.T) {
	h := fixture(t, map[string]string{"/proc/12/limits": limitsTable, "/proc/13/limits": "nothing\n"})
	limits, err := h.Limits("12")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Limit{
		OpenFiles: {1024, 1048576}, LockedMemory: {8 << 20, Unlimited}, "Max cpu time": {Unlimited, Unlimited}, "Max nice priority": {},
	} {
		if got, ok := limits[name]; !ok || got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if _, ok := limits["Limit"]; ok {
		t.Error("the heading was read as a limit")
	}
	for _, pid := range []string{"13", "14"} {
		if l, err := h.Limits(pid); err == nil {
			t.Errorf("process %s has %v", pid, l)
		}
	}
	if n, ok := parseLimit(strconv.FormatUint(math.MaxUint64, 10)); !ok || n != Unlimited {
		t.Errorf("2^64-1 is %d", n)
	}
}

// Limits reads the table of the running kernel.
func TestLocalLimits(t *testing.T) {
	limits, err := Local().Limits("self")
	if err != nil || limits[OpenFiles].Hard <= 0 {
		t.Errorf("%+v, %v", limits[OpenFiles], err)
	}
}

func TestProcesses(t *testing.T) {
	h := fixture(t, map[string]string{
		"/proc/1/cmdline": "/sbin/init\x00", "/proc/1/stat": "1 (init) S 0 1 1",
		"/proc/2/cmdline": "", "/proc/2/stat": "2 (kthreadd) S 0 0 0",
		"/proc/77/cmdline": "kv3fs\x00serve\x00--data\x00\x00", "/proc/77/stat": "77 (a ) T (b) T 1 77",
		"/proc/77/environ": "A=1\x00PYTHONHASHSEED=0\x00PYTHONHASHSEEDS=1\x00",
		"/proc/self/stat":  "",
	})
	all, err := h.Processes()
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if p := all[1]; p.PID != 77 || p.State != "T" || strings.Join(p.Args, " ") != "kv3fs serve --data" {
		t.Errorf("%+v", p)
	}
	if v, set, err := h.Environ(77, "PYTHONHASHSEED"); v != "0" || !set || err != nil {
		t.Errorf("%q, %v, %v", v, set, err)
	}
	if _, set, err := h.Environ(77, "B"); set || err != nil {
		t.Errorf("unset: %v, %v", set, err)
	}
	if _, _, err := h.Environ(78, "B"); err == nil {
		t.Error("a missing process has an environment")
	}
}

func TestHostFacts(t *testing.T) {
	h := fixture(t, map[string]string{
		"/proc/sys/vm/max_map_count": "65530\n",
		"/proc/meminfo":              "MemTotal:       24684084 kB\nMemAvailable:    1048576 kB\n",
		"/etc/fuse.conf":             "# mount_max = 1000\n  user_allow_other  \n",
		"/proc/modules":              "nvidia_fs 262144 0 - Live 0x0\n",
		"/proc/1/cgroup":             "0::/kubepods/besteffort/pod1\n",
	})
	if n, err := h.Sysctl("vm.max_map_count"); n != 65530 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := h.MemoryAvailableBytes(); n != 1<<30 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if !h.UserAllowOther() || !h.ModuleLoaded("nvidia_fs") || h.ModuleLoaded("nvidia") || !h.InContainer() {
		t.Error("UserAllowOther, ModuleLoaded or InContainer is wrong")
	}
	bare := fixture(t, map[string]string{"/etc/fuse.conf": "#user_allow_other\n", "/proc/1/cgroup": "0::/init.scope\n"})
	if bare.UserAllowOther() || bare.ModuleLoaded("nvidia_fs") || bare.InContainer() {
		t.Error("UserAllowOther, ModuleLoaded or InContainer is wrong on a bare host")
	}
	if _, err := bare.MemoryAvailableBytes(); err == nil {
		t.Error("a host without /proc/meminfo has memory")
	}
}

// What the kernel and NVIDIA's driver say about GPUs, and nothing on a host without them.
func TestGPUs(t *testing.T) {
	for _, c := range []struct {
		text string
		bar  int
		want int64
	}{
		{"0x9e000000 0x9effffff 0x40200\n0x18000000000 0x19fffffffff 0x14220c\n0x0 0x0 0x0\n", 1, 128 << 30},
		{"0x9e000000 0x9effffff 0x40200\n0x18000000000 0x19fffffffff 0x14220c\n", 0, 16 << 20},
		{"0x0 0x0 0x0\n", 0, 0}, {"", 1, 0}, {"x y z\n0x1\n", 0, 0}, {"0x0 0xffffffffffffffff 0x0\n", 0, 0},
	} {
		if got := barBytes(c.text, c.bar); got != c.want {
			t.Errorf("BAR%d of %q: %d, want %d", c.bar, c.text, got, c.want)
		}
	}
	h := Host{Root: t.TempDir()}
	version, open := h.NVIDIADriver()
	if gpus := h.GPUs(); len(gpus) > 0 || version != "" || open || h.NVIDIAFSVersion() != "" || h.HasIOMMU() || h.BootOption("quiet") {
		t.Errorf("an empty host: %v, %q", gpus, version)
	}
}
