package host

import (
	"maps"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemoryBytes(t *testing.T) {
	const meminfo = "MemTotal:       24684084 kB\nMemAvailable:    1048576 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no control groups": {nil, 24684084 << 10},
		"the group above is smaller": {map[string]string{
			"/proc/self/cgroup":                 "0::/a/b\n",
			"/sys/fs/cgroup/a/b/memory.max":     "8589934592\n",
			"/sys/fs/cgroup/a/memory.max":       "4294967296\n",
			"/sys/fs/cgroup/other/a/memory.max": "1\n",
		}, 4 << 30},
		"no limit":    {map[string]string{"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/memory.max": "max\n"}, 24684084 << 10},
		"a container": {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30},
		"version 1": {map[string]string{
			"/proc/self/cgroup":                             "5:cpu,cpuacct:/a\n4:memory:/a\n",
			"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2147483648\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, 2 << 30},
	} {
		files := map[string]string{"/proc/meminfo": meminfo}
		maps.Copy(files, c.files)
		if got, err := fixture(t, files).MemoryBytes(); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
	if _, err := fixture(t, nil).MemoryBytes(); err == nil {
		t.Error("a host without /proc/meminfo has memory")
	}
}

// What can still be taken is no more than is available, than the control group has, and of
// /dev/shm than is free there.
func TestMemoryFreeBytes(t *testing.T) {
	files := map[string]string{"/proc/meminfo": "MemTotal: 24684084 kB\nMemAvailable: 8388608 kB\n"}
	limited := map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1073741824\n"}
	maps.Copy(limited, files)
	shm := func(st unix.Statfs_t, err error) func(string, *unix.Statfs_t) error {
		return func(_ string, to *unix.Statfs_t) error {
			*to = st
			return err
		}
	}
	for name, c := range map[string]struct {
		files  map[string]string
		inShm  bool
		statfs func(string, *unix.Statfs_t) error
		want   int64
		fails  bool
	}{
		"available":        {files, false, nil, 8 << 30, false},
		"in a container":   {limited, false, nil, 1 << 30, false},
		"a small /dev/shm": {files, true, shm(unix.Statfs_t{Bsize: 4096, Blocks: 16384, Bavail: 1024}, nil), 4 << 20, false},
		"a large /dev/shm": {limited, true, shm(unix.Statfs_t{Bsize: 4096, Blocks: 1 << 30, Bavail: 1 << 29}, nil), 1 << 30, false},
		"without a limit":  {files, true, shm(unix.Statfs_t{}, nil), 8 << 30, false},
		"no /dev/shm":      {files, true, shm(unix.Statfs_t{}, unix.ENOENT), 0, true},
		"no /proc":         {nil, false, nil, 0, true},
	} {
		h := fixture(t, c.files)
		h.Statfs = c.statfs
		if got, err := h.MemoryFreeBytes(c.inShm); got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
}
