package fuseserver

import (
	"os"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// mountpoint is a line of /proc/self/mountinfo.
type mountpoint struct {
	minor  int // of the device; a FUSE connection's number
	path   string
	fsType string
	source string
}

// mountedAt returns the topmost mount at path.
func mountedAt(path string) (mountpoint, bool) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mountpoint{}, false
	}
	return findMount(string(info), path)
}

func findMount(info, path string) (found mountpoint, ok bool) {
	for line := range strings.Lines(info) {
		before, after, cut := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !cut || len(left) < 6 || len(right) < 2 || wire.UnescapeMountinfo(left[4]) != path {
			continue
		}
		_, minor, _ := strings.Cut(left[2], ":")
		number, _ := strconv.Atoi(minor)
		// Later lines cover earlier ones.
		found, ok = mountpoint{minor: number, path: path, fsType: right[0], source: right[1]}, true
	}
	return found, ok
}
