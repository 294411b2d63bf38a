package host

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MemoryBytes returns the memory that this process may use: the machine's, or the least
// limit of its control groups.
func (h Host) MemoryBytes() (int64, error) {
	n, err := h.meminfo("MemTotal")
	if err != nil {
		return 0, err
	}
	groups, _ := h.read("/proc/self/cgroup") // without control groups, there is no limit
	return min(n, h.groupMemoryBytes(groups)), nil
}

// MemoryLimitBytes returns the memory limit of this process's control groups, as a container
// or a systemd unit sets it: Unlimited if they allow all that the machine has.
func (h Host) MemoryLimitBytes() (int64, error) {
	groups, err := h.read("/proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	total, err := h.meminfo("MemTotal")
	if limit := h.groupMemoryBytes(groups); err != nil || limit < total {
		return limit, err
	}
	return Unlimited, nil
}

// groupMemoryBytes returns the least memory limit of the control groups in the text of
// /proc/self/cgroup and of the groups above them, or Unlimited.
func (h Host) groupMemoryBytes(groups string) int64 {
	least := int64(Unlimited)
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		top, file := "/sys/fs/cgroup", "memory.max"
		switch f[1] {
		case "": // version 2
		case "memory":
			top, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + f[2]); ; group = path.Dir(group) {
			text, _ := h.read(path.Join(top, group, file)) // the topmost has no limit
			if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && n > 0 {
				least = min(least, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// MemoryAvailableBytes returns the memory that new programs can use without swapping.
func (h Host) MemoryAvailableBytes() (int64, error) { return h.meminfo("MemAvailable") }

// MemoryFreeBytes returns the memory that a process can still take: what is available, and
// no more than MemoryBytes. With inShm it is also no more than what is free in /dev/shm.
func (h Host) MemoryFreeBytes(inShm bool) (int64, error) {
	available, err := h.MemoryAvailableBytes()
	if err != nil {
		return 0, err
	}
	most, err := h.MemoryBytes()
	if err != nil {
		return 0, err
	}
	free := min(available, most)
	if !inShm {
		return free, nil
	}
	var st unix.Statfs_t
	if err := h.Statfs(h.Path("/dev/shm"), &st); err != nil {
		return 0, fmt.Errorf("/dev/shm: %w", err)
	}
	if st.Blocks == 0 { // no limit of its own
		return free, nil
	}
	return min(free, int64(st.Bavail)*st.Bsize), nil
}

// meminfo returns a line of /proc/meminfo in bytes.
func (h Host) meminfo(name string) (int64, error) {
	text, err := h.read("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name+":" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no line %s", name)
}
