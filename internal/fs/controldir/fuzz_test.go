package controldir_test

import (
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
)

// FuzzRelPath checks that a path accepted for moving and deleting is below the mount's
// root, and is neither the root nor in 3fs-virt.
func FuzzRelPath(f *testing.F) {
	dir := controldir.New(nil, nil, controldir.Options{MountPoint: "/mnt/3fs", RemountPrefix: "/data"})
	f.Fuzz(func(t *testing.T, abs string) {
		rel, errno := dir.RelPath(abs)
		if errno != 0 {
			if errno != syscall.EINVAL && errno != syscall.EPERM || rel != "" {
				t.Fatalf("%q: %q, %v", abs, rel, errno)
			}
			return
		}
		first, _, _ := strings.Cut(rel, "/")
		if first == "" || first == "." || first == ".." || first == controldir.DirName || rel != path.Clean(rel) {
			t.Fatalf("%q: %q", abs, rel)
		}
		if at := path.Clean(abs); at != "/mnt/3fs/"+rel && at != "/data/"+rel {
			t.Fatalf("%q is not %q", abs, rel)
		}
	})
}
