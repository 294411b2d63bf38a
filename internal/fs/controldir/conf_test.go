package controldir_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func (w world) conf(t *testing.T, c cred.Caller, key string) string {
	t.Helper()
	a, errno := w.Lookup(c, wire.InoGetConf, key)
	if errno != 0 {
		t.Fatalf("lookup %s: %v", key, errno)
	}
	value, errno := w.Readlink(c, a.Ino)
	if errno != 0 {
		t.Fatalf("readlink %s: %v", key, errno)
	}
	if a.Size != uint64(len(value)) {
		t.Errorf("%s: size %d, value %q", key, a.Size, value)
	}
	return value
}

// Case 71: values in the form that clients compare, and EINVAL, not ENOENT, for a key
// that does not exist.
func TestGetConf(t *testing.T) {
	w := newWorld(settings.Defaults())
	if got := w.conf(t, alice(), "usr.readonly"); got != "false" {
		t.Errorf("usr.readonly is %q", got)
	}
	for _, name := range []string{"nope", "readonly", "usr.nope", "sys.readonly", ""} {
		_, errno := w.Lookup(alice(), wire.InoGetConf, name)
		wantErrno(t, "lookup "+name, errno, syscall.EINVAL)
	}
	es, errno := w.List(alice(), wire.InoGetConf)
	wantErrno(t, "list", errno, 0)
	equal(t, "list", names(es), settings.Keys())
	for i, e := range es {
		mode := uint32(syscall.S_IFLNK | 0o400)
		if strings.HasPrefix(e.Name, "sys.") {
			mode = syscall.S_IFLNK | 0o444
		}
		if e.Attr.Ino != 0xfffffffeffffffff-uint64(i) || e.Attr.Mode != mode || e.Attr.UID != 1000 || e.Attr.GID != 100 {
			t.Errorf("%s: %+v", e.Name, e.Attr)
		}
	}
	_, errno = w.Getattr(alice(), 0xfffffffeffffffff-17)
	wantErrno(t, "the number after the last key", errno, syscall.ENOENT)
}

// Case 72: a set affects only the caller's uid, and the directory stays empty.
func TestSetConf(t *testing.T) {
	w := newWorld(settings.Defaults())
	const key = "usr.enable_read_cache" // number 8
	a, errno := w.Symlink(alice(), wire.InoSetConf, key, "false")
	wantErrno(t, "set", errno, 0)
	if a.Ino != 0xfffffffe7fffffff-8 || a.Mode != syscall.S_IFLNK|0o400 || a.UID != 1000 || a.Size != uint64(len("false")) {
		t.Errorf("reply %+v", a)
	}
	if got := w.conf(t, alice(), key); got != "false" {
		t.Errorf("alice reads %q", got)
	}
	if got := w.conf(t, bob(), key); got != "true" {
		t.Errorf("bob reads %q", got)
	}
	// EEXIST for an immediate repetition comes from the kernel. The control directory never
	// finds the name, but answers for the inode that the kernel remembers.
	_, errno = w.Lookup(alice(), wire.InoSetConf, key)
	wantErrno(t, "lookup", errno, syscall.ENOENT)
	if got, errno := w.Readlink(alice(), a.Ino); errno != 0 || got != "false" {
		t.Errorf("reply reads %q, %v", got, errno)
	}
	for _, dir := range []uint64{wire.InoSetConf, wire.InoRmRf} {
		es, errno := w.List(alice(), dir)
		if errno != 0 || len(es) != 0 {
			t.Errorf("list: %q, %v", names(es), errno)
		}
	}
	for _, set := range []struct {
		who        cred.Caller
		key, value string
		want       syscall.Errno
	}{
		{alice(), "nope", "1", syscall.EINVAL},
		{alice(), key, "yes", syscall.EIO},
		{alice(), "sys.max_jobs_per_ioring", "8", syscall.EPERM},
		{root(), "sys.max_jobs_per_ioring", "8", 0},
	} {
		_, errno := w.Symlink(set.who, wire.InoSetConf, set.key, set.value)
		wantErrno(t, set.key, errno, set.want)
	}
	if got := w.conf(t, bob(), "sys.max_jobs_per_ioring"); got != "8" {
		t.Errorf("bob reads %q", got)
	}
}
