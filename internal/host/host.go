// Package host reads facts about a Linux host from /proc, /sys and /etc.
//
// It only reports facts; the doctor and the stores judge them. Only Processes, Args,
// Environ and Statfs can hang with a disk or a FUSE daemon.
package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is a host as seen by one of its processes. Tests build one from a directory.
type Host struct {
	Root      string // directory that holds /proc, /sys, /etc and /dev: "/"
	EUID      int
	LookupEnv func(string) (string, bool)
	// EnvNames returns the names of the variables that LookupEnv finds; nil: not known.
	EnvNames func() []string
	// Statfs is statfs(2). It hangs if path is on a mount that hangs.
	Statfs func(path string, st *unix.Statfs_t) error
}

// Local returns the host that this process runs on.
func Local() Host {
	return Host{Root: "/", EUID: os.Geteuid(), LookupEnv: os.LookupEnv, EnvNames: envNames, Statfs: unix.Statfs}
}

func envNames() (names []string) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	return names
}

// Path returns the path below Root that stands for a path on the host.
func (h Host) Path(name string) string { return filepath.Join(h.Root, name) }

// Exists reports whether something has that name.
func (h Host) Exists(name string) bool {
	_, err := os.Lstat(h.Path(name))
	return err == nil
}

func (h Host) read(name string) (string, error) {
	text, err := os.ReadFile(h.Path(name))
	return string(text), err
}

// Sysctl returns the number in a file of /proc/sys, named as in sysctl(8).
func (h Host) Sysctl(name string) (int64, error) {
	text, err := h.read("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}

// UserAllowOther reports whether users other than root may let others access their FUSE
// mounts.
func (h Host) UserAllowOther() bool {
	text, _ := h.read("/etc/fuse.conf") // without the file, they may not
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// UserNames returns the names of the users in /etc/passwd, by their numbers; other sources of users are not asked.
func (h Host) UserNames() map[string]string {
	names := map[string]string{}
	text, _ := h.read("/etc/passwd")
	for line := range strings.Lines(text) {
		if f := strings.Split(line, ":"); len(f) > 2 && names[f[2]] == "" { // the first one counts
			names[f[2]] = f[0]
		}
	}
	return names
}

// KnowsUser reports whether /etc/passwd has an entry for a user. Other sources of users are not
// asked.
func (h Host) KnowsUser(uid int) bool {
	text, _ := h.read("/etc/passwd")
	for line := range strings.Lines(text) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(uid) {
			return true
		}
	}
	return false
}

// ModuleLoaded reports whether a kernel module of that name is loaded.
func (h Host) ModuleLoaded(name string) bool {
	text, _ := h.read("/proc/modules")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == name {
			return true
		}
	}
	return false
}

// InContainer reports whether this process seems to run in a container.
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
