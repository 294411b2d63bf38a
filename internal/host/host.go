// Package host reads what a Linux host says of itself in /proc, /sys and /etc:
// facts, no judgements. Nothing it reads can hang with a disk or a FUSE daemon,
// but for Processes, which says so.
package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is a host as seen by one process on it. Tests make one of a directory.
type Host struct {
	Root      string // where /proc, /sys, /etc and /dev are: "/"
	EUID      int
	LookupEnv func(string) (string, bool)
	// Statfs is statfs(2). It may hang where path is on a mount that does.
	Statfs func(path string, st *unix.Statfs_t) error
}

// Local is the host this process runs on.
func Local() Host {
	return Host{Root: "/", EUID: os.Geteuid(), LookupEnv: os.LookupEnv, Statfs: unix.Statfs}
}

// Path is where the host's own path is for this process.
func (h Host) Path(name string) string { return filepath.Join(h.Root, name) }

// Exists says whether something has that name.
func (h Host) Exists(name string) bool {
	_, err := os.Lstat(h.Path(name))
	return err == nil
}

func (h Host) read(name string) (string, error) {
	text, err := os.ReadFile(h.Path(name))
	return string(text), err
}

// Sysctl is the number in a file of /proc/sys, named as sysctl(8) does.
func (h Host) Sysctl(name string) (int64, error) {
	text, err := h.read("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}

// MemoryAvailableBytes is what new programs could use without swapping.
func (h Host) MemoryAvailableBytes() (int64, error) {
	text, err := h.read("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo: no MemAvailable")
}

// UserAllowOther says whether users other than root may let others into their
// FUSE mounts.
func (h Host) UserAllowOther() bool {
	text, _ := h.read("/etc/fuse.conf") // none: the default, which is no
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// ModuleLoaded says whether a kernel module of that name is loaded.
func (h Host) ModuleLoaded(name string) bool {
	text, _ := h.read("/proc/modules")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == name {
			return true
		}
	}
	return false
}

// InContainer says whether this looks like the inside of a container.
func (h Host) InContainer() bool {
	if h.Exists("/.dockerenv") || h.Exists("/run/.containerenv") {
		return true
	}
	if _, ok := h.LookupEnv("KUBERNETES_SERVICE_HOST"); ok {
		return true
	}
	groups, _ := h.read("/proc/1/cgroup")
	for _, word := range []string{"kubepods", "docker", "containerd", "libpod"} {
		if strings.Contains(groups, word) {
			return true
		}
	}
	return false
}
