package fuseserver

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// The root's mode and owner are the data directory's, for whoever may change them there, and
// the next daemon serves it whatever they are.
func TestModeOfTheRoot(t *testing.T) {
	daemontest.NeedRoot(t)
	w := newWorld(t, Options{})
	const uid, stranger = 12345, 12346
	as := func(uid uint32, fn func() error) error {
		return cred.RunAs(cred.Caller{UID: uid, GID: uid}, fn)
	}
	chmod := func(mode uint32) func() error {
		return func() error { return unix.Chmod(w.dir, mode) }
	}
	check := func(mode, owner uint32) {
		t.Helper()
		for _, path := range []string{w.dir, w.data} {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Mode != unix.S_IFDIR|mode || st.Uid != owner || st.Gid != owner {
				t.Errorf("%s: mode %o, owner %d:%d, %v; want %o, %d", path, st.Mode, st.Uid, st.Gid, err, mode, owner)
			}
		}
		again, err := tree.Open(w.data, tree.Options{})
		if err != nil {
			t.Errorf("opened again with mode %o: %v", mode, err)
			return
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	wantErrno(t, "chmod by root", chmod(0o1777)(), 0)
	check(0o1777, 0)
	wantErrno(t, "chmod by another user", as(stranger, chmod(0o777)), unix.EPERM)
	wantErrno(t, "chown by another user", as(stranger, func() error { return unix.Chown(w.dir, stranger, stranger) }), unix.EPERM)
	wantErrno(t, "chown by root", unix.Chown(w.dir, uid, uid), 0)
	wantErrno(t, "chmod by its owner", as(uid, chmod(0o700)), 0)
	check(0o700, uid)
	wantErrno(t, "use by another user", as(stranger, func() error { return unix.Mkdir(w.path("d"), 0o755) }), unix.EACCES)
	wantErrno(t, "use by its owner", as(uid, func() error { return unix.Mkdir(w.path("d"), 0o755) }), 0)
	wantErrno(t, "set-group-id", unix.Chmod(w.dir, 0o2770), 0)
	check(0o2770, uid)
	w.settings.readonly.Store(true)
	defer w.settings.readonly.Store(false)
	wantErrno(t, "read-only", chmod(0o777)(), unix.EROFS)
}
