package engineconfig

import (
	"fmt"
	"path"
	"strings"
)

// longestMount is the size of the field for the mount point in upstream's rings.
const longestMount = 255

// checkMount reports problems of a mount point's text. exact means that the engine
// compares it byte by byte with the path that the library finds.
func checkMount(m *mapping, key, mount string, exact bool) {
	sloppy := Note
	if exact {
		sloppy = Failure
	}
	switch {
	case mount == "":
	case !strings.HasPrefix(mount, "/"):
		m.problem(Failure, key, fmt.Sprintf("%.80q is not an absolute path", mount), "write the absolute path of the mount, such as /mnt/3fs")
	case len(mount) > longestMount:
		m.problem(Failure, key, fmt.Sprintf("is longer than %d bytes; a ring holds only %[1]d", longestMount), "mount at a shorter path")
	case path.Clean(mount) != mount:
		m.problem(sloppy, key, fmt.Sprintf("%.80q differs from the form that the library uses", mount), "write "+path.Clean(mount))
	}
}

// checkBase reports problems of a base path's text. mount may be "".
func checkBase(m *mapping, key, base, mount string) {
	switch {
	case !strings.HasPrefix(base, "/"):
		m.problem(Failure, key, fmt.Sprintf("%.80q is not an absolute path", base), "write an absolute path")
	case strings.HasPrefix(mount, "/") && !below(base, mount):
		m.problem(Failure, key, fmt.Sprintf("%.80q is not below the mount point %.80q", base, mount), "choose a directory below the mount point, such as "+path.Join(mount, "kvcache"))
	}
}

// below reports whether base is dir or below it.
func below(base, dir string) bool {
	base, dir = path.Clean(base), path.Clean(dir)
	return base == dir || dir == "/" || strings.HasPrefix(base, dir+"/")
}
