package main

import (
	endian "encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// ioctlAt calls an ioctl of 3FS on a file or directory.
func ioctlAt(t *testing.T, at string, number uint, arg []byte) error {
	t.Helper()
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(number), uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
		return errno
	}
	return nil
}

func inoOf(t *testing.T, at string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(at, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// What is moved into a directory with a quota has room made for it there, or stays where it is: a file, a
// directory with all below it, one that takes another's place, a further name; by system calls and by 3FS's ioctls.
func TestMoveIntoQuota(t *testing.T) {
	const mib = 1 << 20
	o := operate(t, "--capacity", "256MiB")
	at := func(name string) string { return filepath.Join(o.Mount, name) }
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(o.Data, name))
		return err == nil
	}
	holds := func(after string) {
		t.Helper()
		var r quotasReport
		if o.report(&r, "quota ls"); r.Quotas[0].UsedBytes > r.Quotas[0].Bytes {
			t.Errorf("after %s: %+v", after, r)
		}
	}
	for n := range 6 {
		o.aged(block(n), mib)
	}
	o.run("pin", block(0))
	o.run("quota", "set", "models", "8MiB")
	o.write("out/file", 4*mib)
	// A machine that is slow may remove too little in the time that a rename has; what has gone makes room for the next try.
	var err error
	await(t, "room for a file once others go", func() bool {
		err = os.Rename(at("out/file"), at("models/file"))
		return !errors.Is(err, unix.EDQUOT)
	})
	if err != nil || there("out/file") || !there("models/file") {
		t.Errorf("a file for which there is room once others go: %v", err)
	}
	holds("a file")
	o.run("pin", "models")
	var before quotasReport
	o.report(&before, "quota ls")
	o.write("out/file", 5*mib)
	o.write("out/small", mib/4)
	for n := range 12 {
		o.write(fmt.Sprintf("out/tree/%d/file", n), mib)
	}
	move := func(dir, name, to, newName string) error {
		b := make([]byte, wire.MoveBytes)
		endian.LittleEndian.PutUint64(b, inoOf(t, at(dir)))
		endian.LittleEndian.PutUint64(b[264:], inoOf(t, at(to)))
		copy(b[8:], name)
		copy(b[272:], newName)
		return ioctlAt(t, at(dir), wire.IoctlMove, b)
	}
	link := func(name, to, newName string) error {
		b := make([]byte, wire.HardlinkBytes)
		endian.LittleEndian.PutUint64(b, inoOf(t, at(to)))
		copy(b[8:], newName)
		return ioctlAt(t, at(name), wire.IoctlHardlink, b)
	}
	for what, err := range map[string]error{
		"rename":          os.Rename(at("out/file"), at("models/new")),
		"rename, tree":    os.Rename(at("out/tree"), at("models/tree")),
		"link":            os.Link(at("out/file"), at("models/new")),
		"exchange":        unix.Renameat2(unix.AT_FDCWD, at("out/file"), unix.AT_FDCWD, at(block(0)), unix.RENAME_EXCHANGE),
		"exchanged":       unix.Renameat2(unix.AT_FDCWD, at(block(0)), unix.AT_FDCWD, at("out/file"), unix.RENAME_EXCHANGE),
		"ioctl":           move("out", "file", "models", "new"),
		"ioctl, tree":     move("out", "tree", "models", "tree"),
		"ioctl, link":     link("out/file", "models", "new"),
		"ioctl, replaces": move("out", "file", "models", filepath.Base(block(0))),
	} {
		if !errors.Is(err, unix.EDQUOT) {
			t.Errorf("%s: %v; want EDQUOT", what, err)
		}
	}
	if !there("out/file") || !there("out/tree/11/file") || there("models/new") || there("models/tree") || !there(block(0)) {
		t.Error("a move that was refused has happened")
	}
	if err := os.Link(at("out/small"), at("models/small")); err != nil {
		t.Errorf("a link to a small file: %v", err)
	}
	// Within the quota a move takes nothing, and one of the same size in another's place neither.
	fill := func() { // to the last bytes
		for n := 0; ; n++ {
			if err := os.WriteFile(at(fmt.Sprintf("models/fill%d", n)), make([]byte, 256<<10), 0o644); err != nil {
				if !errors.Is(err, unix.EDQUOT) {
					t.Fatal(err)
				}
				return
			}
		}
	}
	if err := os.Mkdir(at("models/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.write("models/new.tmp", mib/2)
	o.write("out/same", mib)
	fill()
	for _, c := range []struct{ from, to string }{{"models/new.tmp", "models/new"}, {"models/new", "models/sub/new"}, {"models/sub", "models/sub2"}, {"out/same", "models/file"}} {
		if err := os.Rename(at(c.from), at(c.to)); err != nil {
			t.Errorf("%s to %s in a full directory: %v", c.from, c.to, err)
		}
	}
	if err := os.Rename(at("models/sub2"), at("out/sub")); err != nil {
		t.Errorf("out of it: %v", err)
	}
	holds("all")
	var r statReport
	if o.report(&r, "stat"); r.State.WaitingWriters != 0 || r.State.ReservedBytes != 0 {
		t.Errorf("%+v", r.State)
	}
}

// A directory keeps its quota when it, or one above it, is renamed, and the quota is known by the new path at once; also
// if the daemon is killed right then, in the middle of renames.
func TestKilledAfterQuotaMoves(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	at := func(name string) string { return filepath.Join(o.Mount, name) }
	quotas := func() (all []string) {
		t.Helper()
		var r struct {
			Quotas  []keeper.Quota
			NotUTF8 map[string][]byte `json:"not_utf8"`
		}
		o.report(&r, "quota ls")
		for i, q := range r.Quotas {
			if exact, ok := r.NotUTF8[fmt.Sprintf("/quotas/%d/path", i)]; ok {
				q.Path = string(exact)
			}
			all = append(all, fmt.Sprintf("%q %d %v", q.Path, q.Bytes>>20, q.Missing))
		}
		return all
	}
	if err := os.MkdirAll(at("up0/a0"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.run("quota", "set", "up0/a0", "8MiB")
	up, dir := "up0", "a0"
	for n := 1; n <= 3; n++ {
		newUp, newDir := fmt.Sprintf("up\n%d\xff", n), fmt.Sprintf("a*%d", n)
		if err := errors.Join(os.Rename(at(up), at(newUp)), os.Rename(at(newUp+"/"+dir), at(newUp+"/"+newDir))); err != nil {
			t.Fatal(err)
		}
		o.Kill()
		o.Start(t)
		up, dir = newUp, newDir
		if got, want := strings.Join(quotas(), "; "), fmt.Sprintf("%q 8 false", up+"/"+dir); got != want {
			t.Errorf("after a kill: %s; want %s", got, want)
		}
		if size, _ := spaceOf(t, at(up+"/"+dir)); size != 8<<20 {
			t.Errorf("statfs says %d", size)
		}
	}
	// One that takes the old path has no part in it.
	if err := errors.Join(os.Rename(at(up), at("up")), os.MkdirAll(at(up+"/"+dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	o.run("quota", "set", up+"/"+dir, "4MiB")
	if got := quotas(); len(got) != 2 {
		t.Errorf("%q", got)
	}
	// Killed while they are renamed, it has the quota where the directory is.
	o.run("quota", "rm", up+"/"+dir)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			from, to := at("up"), at("other")
			if n%2 == 1 {
				from, to = to, from
			}
			if os.Rename(from, to) != nil {
				return
			}
		}
	}()
	await(t, "renames", func() bool {
		var r quotasReport
		o.report(&r, "quota ls")
		return len(r.Quotas) == 1 && strings.HasPrefix(r.Quotas[0].Path, "other")
	})
	o.Kill()
	<-ended
	o.Start(t)
	now := "up"
	if _, err := os.Lstat(at("other")); err == nil {
		now = "other"
	}
	if got, want := strings.Join(quotas(), "; "), fmt.Sprintf("%q 8 false", now+"/"+dir); got != want {
		t.Errorf("after a kill while it was renamed: %s; want %s", got, want)
	}
	if err := os.Rename(at(now), at("end")); err != nil {
		t.Fatal(err)
	}
	if out := o.run("quota", "rm", "end/"+dir); !strings.Contains(out, "no quota any more") {
		t.Error(out)
	}
}
