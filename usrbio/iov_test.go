package usrbio

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func TestIovIsSeenByOthers(t *testing.T) {
	for _, o := range []IovOptions{{}, {BlockBytes: 1000}, {Reserve: true}} {
		m, p := testMount(t)
		v, err := m.NewIov(bg, 5000, o)
		if err != nil {
			t.Fatal(err)
		}
		if v.Size() != 5000 || len(v.Bytes()) != 5000 {
			t.Errorf("%d bytes, of which %d are mapped", v.Size(), len(v.Bytes()))
		}
		copy(v.Bytes(), "hello")
		id, err := ParseID(v.ID().String())
		if err != nil || id != v.ID() {
			t.Errorf("id %v, %v", id, err)
		}
		if got := string(p.iovs[wire.UUID(id)].Bytes()[:5]); got != "hello" {
			t.Errorf("the daemon sees %q", got)
		}
		w, err := m.OpenIov(bg, id, o)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(w.Bytes()[:5]); got != "hello" || w.Size() != 5000 || w.ID() != id {
			t.Errorf("the second mapping sees %q in %d bytes", got, w.Size())
		}
		if err := w.Unlink(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("unlink of an opened iov: %v", err)
		}
		if err := w.Close(bg); err != nil {
			t.Error(err)
		}
		if len(p.target) != 1 {
			t.Error("closing an opened iov removed the registration")
		}
		if err := v.Unlink(); err != nil {
			t.Error(err)
		}
		if err := v.Unlink(); err != nil {
			t.Errorf("second unlink: %v", err)
		}
		if _, err := m.OpenIov(bg, id, o); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open after unlink: %v", err)
		}
		for range 2 {
			if err := v.Close(bg); err != nil || v.Bytes() != nil {
				t.Errorf("close: %v, memory of %d bytes left", err, len(v.Bytes()))
			}
		}
	}
}

func TestRegisterIov(t *testing.T) {
	m, p := testMount(t)
	name := "kv3fs-test-" + wire.NewUUID().String()
	mem, err := shm.Create(name, 3000, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Unmap()
	defer shm.Remove(name)
	v, err := m.RegisterIov(bg, name, IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.target[v.ID().String()]; got != filepath.Join(shm.Dir, name) {
		t.Errorf("registered %q", got)
	}
	mem.CopyIn(0, []byte("theirs"))
	if got := string(v.Bytes()[:6]); got != "theirs" {
		t.Errorf("got %q", got)
	}
	if err := v.Unlink(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("unlink: %v", err)
	}
	if err := v.Close(bg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(shm.Dir, name)); err != nil {
		t.Errorf("the caller's object is gone: %v", err)
	}
	for _, bad := range []string{"kv3fs-test-missing", "../etc/passwd", "", ".", ".."} {
		if _, err := m.RegisterIov(bg, bad, IovOptions{}); err == nil {
			t.Errorf("%q was registered", bad)
		}
	}
}

func TestNewIovRefuses(t *testing.T) {
	m, _ := testMount(t)
	minus, far := -1, 1023
	for _, c := range []struct {
		size int64
		o    IovOptions
		want error
	}{
		{0, IovOptions{}, syscall.EINVAL},
		{-1, IovOptions{}, syscall.EINVAL},
		{100, IovOptions{BlockBytes: -1}, syscall.EINVAL},
		{100, IovOptions{BlockBytes: 101}, syscall.EINVAL},
		{1 << 60, IovOptions{}, syscall.ENOSPC},
		{100, IovOptions{NUMANode: &minus}, syscall.EINVAL},
		{100, IovOptions{NUMANode: &far}, nil}, // whatever errno, but one
	} {
		v, err := m.NewIov(bg, c.size, c.o)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%d bytes, %+v: %v, %v", c.size, c.o, v, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(shm.Dir, "hf3fs-iov-*")); len(left) != 0 {
		t.Logf("objects in %s, maybe of others: %v", shm.Dir, left)
	}
}

func TestNUMANode(t *testing.T) {
	m, _ := testMount(t)
	node := 0
	v, err := m.NewIov(bg, 1<<20, IovOptions{NUMANode: &node, Reserve: true})
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) {
		t.Skip("this kernel or sandbox has no mbind:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	v.Bytes()[1<<20-1] = 1
}

func TestParseID(t *testing.T) {
	for _, bad := range []string{"", "x", strings.Repeat("0", 36), "{6ba7b810-9dad-11d1-80b4-00c04fd430c8}", "6ba7b8109dad11d180b400c04fd430c8"} {
		if _, err := ParseID(bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestMountClosesAll(t *testing.T) {
	b := fixture(t, RingOptions{})
	if b.m.Path() != "/test" {
		t.Errorf("path %q", b.m.Path())
	}
	if err := b.m.Close(bg); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Close(bg); err != nil {
		t.Fatal(err)
	}
	if b.v.Bytes() != nil || !b.f.closed.Load() {
		t.Error("something is open")
	}
	if err := errors.Join(b.r.Close(bg), b.v.Close(bg), b.f.Close(bg)); err != nil {
		t.Error(err)
	}
	if _, err := b.m.NewIov(bg, 100, IovOptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("new iov: %v", err)
	}
	if _, err := b.m.NewRing(bg, RingOptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("new ring: %v", err)
	}
}

// A semaphore link to another place is not followed.
func TestSubmitLinkIsChecked(t *testing.T) {
	for _, target := range []string{"", "/dev/shm/sem.", "/dev/shm/other", "/tmp/sem.x", "/dev/shm/sem.a/b", "/dev/shm/sem.../x"} {
		m := newMount("/test", semRegistrar(target))
		if _, err := m.NewRing(bg, RingOptions{}); !errors.Is(err, syscall.EIO) {
			t.Errorf("%q: %v", target, err)
		}
	}
	m := newMount("/test", semRegistrar("/dev/shm/sem.kv3fs-test-missing"))
	if _, err := m.NewRing(bg, RingOptions{}); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "which the daemon cannot reach") {
		t.Errorf("missing semaphore: %v", err)
	}
}

// semRegistrar is a registrar whose semaphore links all have the same target.
type semRegistrar string

func (s semRegistrar) link(context.Context, string, string) error              { return syscall.EPERM }
func (s semRegistrar) unlink(context.Context, string) error                    { return syscall.ENOENT }
func (s semRegistrar) unlinkHere(context.Context, string) error                { return syscall.ENOENT }
func (s semRegistrar) readlink(context.Context, string) (string, error)        { return string(s), nil }
func (s semRegistrar) probe(string) error                                      { return nil }
func (s semRegistrar) call(_ context.Context, fn func() error, _ func()) error { return fn() }
func (s semRegistrar) finish(_ context.Context, fn func() error) error         { return fn() }
func (s semRegistrar) close(context.Context) error                             { return nil }
