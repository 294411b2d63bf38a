package host

import (
	"strings"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// Mount is a line of /proc/self/mountinfo.
type Mount struct {
	Device  string // major:minor
	Point   string
	Options string // of the mount, comma-separated: rw,relatime
	Type    string
	Source  string
	Super   string // options of the file system
}

// HasOption says whether the mount or its file system has an option.
func (m Mount) HasOption(name string) bool {
	for _, list := range []string{m.Options, m.Super} {
		for o := range strings.SplitSeq(list, ",") {
			if o == name {
				return true
			}
		}
	}
	return false
}

// Mounts lists what is mounted, later mounts after those they cover.
func (h Host) Mounts() ([]Mount, error) {
	text, err := h.read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(text), nil
}

// parseMountinfo skips lines it does not understand.
func parseMountinfo(text string) (all []Mount) {
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 2 {
			continue
		}
		m := Mount{
			Device: left[2], Point: wire.UnescapeMountinfo(left[4]), Options: left[5],
			Type: right[0], Source: wire.UnescapeMountinfo(right[1]),
		}
		if len(right) > 2 {
			m.Super = right[2]
		}
		all = append(all, m)
	}
	return all
}

// At returns what is mounted at a path, the topmost if there are several.
func At(mounts []Mount, point string) (found Mount, ok bool) {
	for _, m := range mounts {
		if m.Point == point {
			found, ok = m, true
		}
	}
	return found, ok
}

// Holding returns the mount that an absolute path without symlinks is on.
func Holding(mounts []Mount, path string) (found Mount, ok bool) {
	for _, m := range mounts {
		if Within(path, m.Point) && len(m.Point) >= len(found.Point) {
			found, ok = m, true
		}
	}
	return found, ok
}

// Within says whether path is dir or below it, by their names.
func Within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}
