package tree

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A user who can rename in a directory may put a symbolic link in the place of an entry
// that is being created: nothing outside may change, whatever the umask.
func TestCreationTouchesNothingElse(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	tr, dir := newTree(t, Options{})
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		link, name := filepath.Join(dir, "link"), filepath.Join(dir, "new")
		for {
			select {
			case <-stop:
				return
			default:
			}
			unix.Symlink(outside, link)
			for unix.Access(name, unix.F_OK) != nil {
				select {
				case <-stop:
					return
				default:
				}
			}
			unix.Rename(link, name)
		}
	}()
	for range 300 {
		if e, err := tr.Mknod(RootID, "new", 0o666, root, 0); err == nil {
			tr.Forget(e.ID, 1)
		}
		unix.Unlink(filepath.Join(dir, "new"))
	}
	close(stop)
	<-done
	info, err := os.Stat(outside)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file outside has mode %v, %v", info.Mode(), err)
	}
}

// New entries have exactly the mode that the client requested.
func TestModesAreExact(t *testing.T) {
	tr, _ := newTree(t, Options{})
	d, err := tr.Mkdir(RootID, "d", 0o777, root, 0)
	if err != nil || d.Attr.Mode != unix.S_IFDIR|0o777 {
		t.Errorf("directory %o, %v", d.Attr.Mode, err)
	}
	f, err := tr.Mknod(RootID, "f", 0o666, root, 0)
	if err != nil || f.Attr.Mode != unix.S_IFREG|0o666 {
		t.Errorf("file %o, %v", f.Attr.Mode, err)
	}
	g, h := create(t, tr, RootID, "g", root, 0o622)
	defer h.Close()
	if g.Attr.Mode != unix.S_IFREG|0o622 {
		t.Errorf("created file %o", g.Attr.Mode)
	}
}
