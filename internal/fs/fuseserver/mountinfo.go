package fuseserver

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// mountpoint is a line of /proc/self/mountinfo.
type mountpoint struct {
	id, parent int
	minor      int // of the device; a FUSE connection's number
	path       string
	fsType     string
	source     string
	root       string // of the mount, in its file system
	// The groups of mounts with which it shares what is mounted on it, and from which it takes that. 0: none.
	shared, master int
}

func (m mountpoint) isFUSE() bool { return m.fsType == "fuse" || strings.HasPrefix(m.fsType, "fuse.") }

// mountsAt returns the mounts at path, each followed by the one that it covers: none where
// there is nothing. It asks no FUSE daemon.
func mountsAt(path string) ([]mountpoint, error) {
	top, err := mountID(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	var info []byte
	if err == nil {
		info, err = os.ReadFile("/proc/self/mountinfo")
	}
	if err != nil {
		return nil, fmt.Errorf("mount point %s: what is mounted there cannot be seen: %w", path, err)
	}
	return findMounts(string(info), path, top), nil
}

// mountID returns the number of the mount that a path leads to.
func mountID(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, fmt.Errorf("mount of %s: the kernel does not tell: %w", path, unix.ENOTSUP)
}

// findMounts returns the mounts at path from the one with number top downwards.
func findMounts(info, path string, top int) (found []mountpoint) {
	at := make(map[int]mountpoint)
	for line := range strings.Lines(info) {
		if m, ok := parseMount(line); ok && m.path == path {
			at[m.id] = m
		}
	}
	for m, ok := at[top]; ok; m, ok = at[m.parent] {
		found = append(found, m)
		delete(at, m.id) // ends the loop if parents form a cycle
	}
	return found
}

func parseMount(line string) (m mountpoint, ok bool) {
	before, after, cut := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if !cut || len(left) < 6 || len(right) < 2 {
		return m, false
	}
	_, minor, _ := strings.Cut(left[2], ":")
	var bad [3]error
	m.id, bad[0] = strconv.Atoi(left[0])
	m.parent, bad[1] = strconv.Atoi(left[1])
	m.minor, bad[2] = strconv.Atoi(minor)
	for _, field := range left[6:] {
		if group, ok := strings.CutPrefix(field, "shared:"); ok {
			m.shared, _ = strconv.Atoi(group)
		} else if group, ok := strings.CutPrefix(field, "master:"); ok {
			m.master, _ = strconv.Atoi(group)
		}
	}
	m.root, m.path = wire.UnescapeMountinfo(left[3]), wire.UnescapeMountinfo(left[4])
	m.fsType, m.source = right[0], right[1]
	return m, errors.Join(bad[:]...) == nil
}
