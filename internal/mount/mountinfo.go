package mount

import (
	"os"
	"strconv"
	"strings"
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
		if !cut || len(left) < 6 || len(right) < 2 || unescape(left[4]) != path {
			continue
		}
		_, minor, _ := strings.Cut(left[2], ":")
		number, _ := strconv.Atoi(minor)
		// Later lines cover earlier ones.
		found, ok = mountpoint{minor: number, path: path, fsType: right[0], source: right[1]}, true
	}
	return found, ok
}

// unescape undoes the kernel's octal escapes of blanks and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
