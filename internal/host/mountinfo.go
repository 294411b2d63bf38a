package host

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/wire"
)

const (
	// HF3FSType is the type of a 3FS mount.
	HF3FSType = "fuse.hf3fs"
	// VirtDir is the directory of a 3FS where clients register their memory.
	VirtDir = "3fs-virt"
)

// Mount is a line of /proc/self/mountinfo.
type Mount struct {
	ID, Parent string
	Device     string // major:minor
	Root       string // the directory of the file system that is mounted
	Point      string
	Options    string // of the mount, comma-separated: rw,relatime
	Type       string
	Source     string
	Super      string // options of the file system
	Shared     bool   // what is mounted on it reaches other mounts of it
}

// HasOption reports whether the mount or its file system has an option.
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

// Mounts lists all mounts. A mount comes after those that it covers.
func (h Host) Mounts() ([]Mount, error) {
	text, err := h.read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(text), nil
}

// parseMountinfo reads the format of /proc/self/mountinfo. It skips lines that it does
// not understand.
func parseMountinfo(text string) (all []Mount) {
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 2 {
			continue
		}
		m := Mount{
			ID: left[0], Parent: left[1],
			Device: left[2], Root: wire.UnescapeMountinfo(left[3]), Point: wire.UnescapeMountinfo(left[4]), Options: left[5],
			Type: right[0], Source: wire.UnescapeMountinfo(right[1]),
			Shared: slices.ContainsFunc(left[6:], func(tag string) bool { return strings.HasPrefix(tag, "shared:") }),
		}
		if len(right) > 2 {
			m.Super = right[2]
		}
		all = append(all, m)
	}
	return all
}

// HF3FS lists the directories at which a 3FS is accessible, in the order of mounting. It
// includes directories into which a 3fs-virt is bind-mounted, as clients do.
func HF3FS(mounts []Mount) (points []string) {
	for i, m := range mounts {
		if m.Type != HF3FSType || covered(mounts, i) {
			continue
		}
		point := m.Point
		if filepath.Base(point) == VirtDir {
			point = filepath.Dir(point)
		}
		if !slices.Contains(points, point) {
			points = append(points, point)
		}
	}
	return points
}

// covered reports whether a later mount, at the same point or above it, hides the mount
// with that index. A later mount does not hide the mounts that are mounted on it; such
// mounts can precede it, because a host moves to its real root after mounting /proc, and
// mounts can be moved.
func covered(mounts []Mount, index int) bool {
	m := mounts[index]
	for _, later := range mounts[index+1:] {
		if Within(m.Point, later.Point) && !isOn(mounts, m, later.ID) {
			return true
		}
	}
	return false
}

// isOn reports whether m is mounted on the mount with that ID, directly or indirectly.
func isOn(mounts []Mount, m Mount, id string) bool {
	for range mounts { // bounds the steps if parents form a cycle
		if m.Parent == id {
			return true
		}
		parent := slices.IndexFunc(mounts, func(p Mount) bool { return p.ID == m.Parent })
		if parent < 0 {
			return false
		}
		m = mounts[parent]
	}
	return false
}

// At returns the mount at a path, or the topmost one if there are several.
func At(mounts []Mount, point string) (found Mount, ok bool) {
	for _, m := range mounts {
		if m.Point == point {
			found, ok = m, true
		}
	}
	return found, ok
}

// Stack returns the mounts that are seen at a path without symbolic links, each of which covers the one before. Where a directory is mounted
// on itself, what is mounted in it may be in the table twice under the same path, of which only one is seen there.
func Stack(mounts []Mount, point string) (seen []Mount) {
	parents := map[string]string{}
	for _, m := range mounts {
		parents[m.ID] = m.Parent
	}
	on := map[[2]string]Mount{} // by parent, which is "" for what the table begins with, and point
	for _, m := range mounts {
		if _, known := parents[m.Parent]; !known || m.Parent == m.ID {
			m.Parent = ""
		}
		on[[2]string{m.Parent, m.Point}] = m
	}
	parts := []string{"/"}
	for i := 1; i < len(point); i++ {
		if i+1 == len(point) || point[i+1] == '/' {
			parts = append(parts, point[:i+1])
		}
	}
	at := ""
	for _, part := range parts {
		seen = nil
		for m, ok := on[[2]string{at, part}]; ok && len(seen) < len(mounts); m, ok = on[[2]string{at, part}] {
			seen, at = append(seen, m), m.ID
		}
	}
	return seen
}

// Holding returns the mount that holds an absolute path without symbolic links.
func Holding(mounts []Mount, path string) (found Mount, ok bool) {
	for _, m := range mounts {
		if Within(path, m.Point) && len(m.Point) >= len(found.Point) {
			found, ok = m, true
		}
	}
	return found, ok
}

// Within reports whether path is dir or below it, judging only by their names.
func Within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}
