package engineconfig

import (
	"fmt"
	"path"
	"strings"
)

// longestMount is what a ring of upstream's has room for.
const longestMount = 255

// checkMount reports what is wrong with a mount point as text. With exact, the
// engine compares it letter by letter with what the library finds.
func checkMount(m *mapping, key, mount string, exact bool) {
	sloppy := Note
	if exact {
		sloppy = Failure
	}
	switch {
	case mount == "":
	case !strings.HasPrefix(mount, "/"):
		m.problem(Failure, key, fmt.Sprintf("%.80q is no absolute path", mount), "write the path of the mount from the root, such as /mnt/3fs")
	case len(mount) > longestMount:
		m.problem(Failure, key, fmt.Sprintf("is longer than the %d bytes that a ring has for it", longestMount), "mount at a shorter path")
	case path.Clean(mount) != mount:
		m.problem(sloppy, key, fmt.Sprintf("%.80q is not how the library writes it", mount), "write "+path.Clean(mount))
	}
}

// checkBase reports what is wrong with a base path as text; mount may be "".
func checkBase(m *mapping, key, base, mount string) {
	switch {
	case !strings.HasPrefix(base, "/"):
		m.problem(Failure, key, fmt.Sprintf("%.80q is no absolute path", base), "write the path from the root")
	case strings.HasPrefix(mount, "/") && !below(base, mount):
		m.problem(Failure, key, fmt.Sprintf("%.80q is not below the mount point %.80q", base, mount), "choose a directory below the mount point, such as "+path.Join(mount, "kvcache"))
	}
}

// below says whether a path is a directory or in it.
func below(base, dir string) bool {
	base, dir = path.Clean(base), path.Clean(dir)
	return base == dir || dir == "/" || strings.HasPrefix(base, dir+"/")
}
