package volumes

import (
	"path"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/host"
)

// PagesDir is the directory of a volume in which the socket of its page namespace is.
const PagesDir = "3fs-pages"

// SubDirectory checks the name of a sub-directory and returns it as a Record has it. It stays below the mount whatever it names;
// symbolic links in it are refused later, when it is opened.
func SubDirectory(name string) (string, error) {
	switch clean := path.Clean(name); {
	case name == "":
		return ".", nil
	case path.IsAbs(name):
		return "", failure(Invalid, "subDirectory %q: give a path below the cache's root, without the leading slash", name)
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", failure(Invalid, "subDirectory %q: .. may not be in it: give a path below the cache's root", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(name) > 1024:
		return "", failure(Invalid, "subDirectory %.64q: give at most 1024 characters, and none that cannot be printed", name)
	case reserved(clean):
		return "", failure(Invalid, "subDirectory %q: names that begin with .kv3fs, %s and %s are kv3fs's own: choose another", name, host.VirtDir, PagesDir)
	default:
		return clean, nil
	}
}

// inside is what SubDirectory makes sure of, for what is read from a file.
func inside(sub string) bool {
	clean, err := SubDirectory(sub)
	return err == nil && clean == sub
}

func reserved(clean string) bool {
	return slices.ContainsFunc(strings.Split(clean, "/"), func(part string) bool {
		return strings.HasPrefix(part, ".kv3fs") || part == host.VirtDir || part == PagesDir
	})
}
