package host

import (
	"maps"
	"testing"
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
