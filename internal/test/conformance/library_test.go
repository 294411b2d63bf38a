package conformance

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// library is the common part of the C library and package usrbio, so that one
// case can run through both.
type library interface {
	open(path, flags string) file // and registers it
	buffer(sizeBytes, blockBytes int64) buffer
	ring(o ringOptions) ring
}

type file interface {
	fsync()
	close()
}

type buffer interface {
	fill(off, n int64, seed uint64)
	wrong(off, n int64, seed uint64) string // "" when it holds what fill writes
	zeros(off, n int64) bool
	close()
}

type ring interface {
	// prep queues one request; errno 0 is success.
	prep(b buffer, bufOff int64, f file, fileOff, n int64, userdata uint64) (index int, errno syscall.Errno)
	submit()
	wait(most, least int, limit time.Duration) []cqe
	close()
}

type ringOptions struct {
	entries   int
	write     bool
	depth     int
	timeoutMs int
	priority  int
	flags     int
}

type cqe struct {
	index    int
	result   int64
	userdata uint64
}

// ways are the ways in which one number is tested, by name: c and go for the two
// libraries, raw for a ring written by hand, sys for plain system calls.
type ways map[string]func(*testing.T)

// both runs fn through both libraries against the shared daemon.
func both(fn func(*testing.T, *world, library)) ways {
	return ways{
		"c":  func(t *testing.T) { w := shared(t); fn(t, w, newCLibrary(t, w)) },
		"go": func(t *testing.T) { w := shared(t); fn(t, w, newGoLibrary(t, w)) },
	}
}

// throughBoth is both for the test's own daemon.
func throughBoth(t *testing.T, w *world, fn func(*testing.T, library)) {
	t.Run("c", func(t *testing.T) { fn(t, newCLibrary(t, w)) })
	t.Run("go", func(t *testing.T) { fn(t, newGoLibrary(t, w)) })
}

func (a ways) and(more ways) ways {
	for name, fn := range more {
		a[name] = fn
	}
	return a
}

func way(name string, fn func(*testing.T)) ways { return ways{name: fn} }
func c(fn func(*testing.T, *world, *tool)) ways {
	return way("c", func(t *testing.T) { w := shared(t); fn(t, w, w.tool(t)) })
}
func sys(fn func(*testing.T, *world)) ways {
	return way("sys", func(t *testing.T) { fn(t, shared(t)) })
}
func goWay(fn func(*testing.T, *world)) ways {
	return way("go", func(t *testing.T) { fn(t, shared(t)) })
}

// one queues one request and returns its result.
func one(t *testing.T, r ring, b buffer, bufOff int64, f file, fileOff, n int64) int64 {
	t.Helper()
	index, errno := r.prep(b, bufOff, f, fileOff, n, 77)
	if errno != 0 {
		t.Fatalf("prepare: %v", errno)
	}
	r.submit()
	got := r.wait(1, 1, patience)
	if len(got) != 1 || got[0].index != index || got[0].userdata != 77 {
		t.Fatalf("completions %+v, want one of index %d", got, index)
	}
	return got[0].result
}

// expect queues one request and checks its result.
func expect(t *testing.T, want int64, r ring, b buffer, bufOff int64, f file, fileOff, n int64) {
	t.Helper()
	if got := one(t, r, b, bufOff, f, fileOff, n); got != want {
		t.Errorf("request for %d bytes at %d: result %d (%s), want %d", n, fileOff, got, errnoName(got), want)
	}
}

func errnoName(result int64) string {
	if result < 0 {
		return syscall.Errno(-result).Error()
	}
	return "bytes"
}

func holds(t *testing.T, b buffer, off, n int64, seed uint64) {
	t.Helper()
	if bad := b.wrong(off, n, seed); bad != "" {
		t.Errorf("buffer at %d: %s", off, bad)
	}
}

// pattern returns the bytes that fill writes, in both libraries.
func pattern(n int64, seed uint64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte((seed + uint64(i)) * 0x9E3779B97F4A7C15 >> 56)
	}
	return p
}

// write creates a file through the mount.
func write(t *testing.T, path string, content []byte) string {
	t.Helper()
	must(t, os.WriteFile(path, content, 0o644))
	return path
}

// fileHolds checks that a file has the pattern.
func fileHolds(t *testing.T, path string, off, n int64, seed uint64) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	got := make([]byte, n)
	if m, err := f.ReadAt(got, off); err != nil {
		t.Errorf("%s: %d bytes at %d: %v", path, m, off, err)
	}
	if string(got) != string(pattern(n, seed)) {
		t.Errorf("%s: wrong bytes at %d", path, off)
	}
}

// ---- the C library ----

type cLibrary struct {
	t *testing.T
	w *world
	*tool
	names int
}

func newCLibrary(t *testing.T, w *world) *cLibrary {
	return &cLibrary{t: t, w: w, tool: w.tool(t)}
}

func (l *cLibrary) name(kind string) string {
	l.names++
	return fmt.Sprintf("%s%d", kind, l.names)
}

type cFile struct {
	l    *cLibrary
	name string
}

func (l *cLibrary) open(path, flags string) file {
	l.t.Helper()
	f := &cFile{l, l.name("file")}
	l.ok("open %s %s %s", f.name, path, flags)
	l.ok("reg %s", f.name)
	return f
}
func (f *cFile) fsync() { f.l.t.Helper(); f.l.ok("fsync %s", f.name) }
func (f *cFile) close() { f.l.ok("dereg %s", f.name); f.l.ok("close %s", f.name) }

type cBuffer struct {
	l    *cLibrary
	name string
}

func (l *cLibrary) buffer(size, block int64) buffer {
	l.t.Helper()
	b := &cBuffer{l, l.name("iov")}
	l.ok("iovcreate %s %s %d %d -1", b.name, l.w.Mount, size, block)
	return b
}
func (b *cBuffer) fill(off, n int64, seed uint64) {
	b.l.t.Helper()
	b.l.ok("fill %s %d %d %d", b.name, off, n, seed)
}
func (b *cBuffer) wrong(off, n int64, seed uint64) string {
	b.l.t.Helper()
	if a := b.l.do("check %s %d %d %d", b.name, off, n, seed); a.code != 0 {
		return a.line
	}
	return ""
}
func (b *cBuffer) zeros(off, n int64) bool {
	b.l.t.Helper()
	want := crc32.Checksum(make([]byte, n), crc32.MakeTable(crc32.Castagnoli))
	return b.l.ok("crc %s %d %d", b.name, off, n).kv["crc"] == fmt.Sprintf("%08x", want)
}
func (b *cBuffer) close() { b.l.ok("iovdestroy %s", b.name) }

type cRing struct {
	l     *cLibrary
	name  string
	write bool
}

func letter(write bool) string {
	if write {
		return "w"
	}
	return "r"
}

func (l *cLibrary) ring(o ringOptions) ring {
	l.t.Helper()
	r := &cRing{l, l.name("ring"), o.write}
	if o.flags != 0 {
		l.ok("iorcreate4 %s %s %d %s %d %d -1 %d", r.name, l.w.Mount, o.entries, letter(o.write), o.depth, o.timeoutMs, o.flags)
	} else {
		l.ok("iorcreate3 %s %s %d %s %d %d %d -1", r.name, l.w.Mount, o.entries, letter(o.write), o.depth, o.priority, o.timeoutMs)
	}
	return r
}
func (r *cRing) prep(b buffer, bufOff int64, f file, fileOff, n int64, userdata uint64) (int, syscall.Errno) {
	r.l.t.Helper()
	a := r.l.do("prep %s %s %s %d %s %d %d %d", r.name, b.(*cBuffer).name, letter(r.write), bufOff, f.(*cFile).name, fileOff, n, userdata)
	if a.code != 0 {
		if a.code > 0 || a.code < -4095 {
			r.l.t.Fatalf("prep: %s", a.line)
		}
		return a.code, syscall.Errno(-a.code)
	}
	return int(a.num(r.l.t, "index")), 0
}
func (r *cRing) submit() { r.l.t.Helper(); r.l.ok("submit %s", r.name) }
func (r *cRing) wait(most, least int, limit time.Duration) []cqe {
	r.l.t.Helper()
	when := fmt.Sprint(limit.Milliseconds())
	if limit < 0 {
		when = "past"
	}
	return r.l.ok("wait %s %d %d %s", r.name, most, least, when).cqes(r.l.t)
}
func (r *cRing) close() { r.l.ok("iordestroy %s", r.name) }

// ---- package usrbio ----

type goLibrary struct {
	t *testing.T
	w *world
	m *usrbio.Mount
}

func newGoLibrary(t *testing.T, w *world) *goLibrary {
	return &goLibrary{t, w, w.client(t)}
}

type goFile struct {
	t *testing.T
	f *os.File
	r *usrbio.File
}

var openFlags = map[string]int{
	"rdonly": os.O_RDONLY, "wronly": os.O_WRONLY, "rdwr": os.O_RDWR, "creat": os.O_CREATE, "trunc": os.O_TRUNC, "direct": unix.O_DIRECT,
}

func (l *goLibrary) open(path, flags string) file {
	l.t.Helper()
	bits := 0
	for word := range strings.SplitSeq(flags, ",") {
		bit, ok := openFlags[word]
		if !ok {
			l.t.Fatal("flag ", word)
		}
		bits |= bit
	}
	f, err := os.OpenFile(path, bits, 0o644)
	must(l.t, err)
	l.t.Cleanup(func() { f.Close() })
	r, err := l.m.Register(context.Background(), f)
	must(l.t, err)
	return &goFile{l.t, f, r}
}
func (f *goFile) fsync() { f.t.Helper(); must(f.t, f.f.Sync()) }
func (f *goFile) close() {
	f.t.Helper()
	must(f.t, f.r.Close(context.Background()))
	must(f.t, f.f.Close())
}

type goBuffer struct {
	t *testing.T
	v *usrbio.Iov
}

func (l *goLibrary) buffer(size, block int64) buffer {
	l.t.Helper()
	v, err := l.m.NewIov(context.Background(), size, usrbio.IovOptions{BlockBytes: block})
	must(l.t, err)
	return &goBuffer{l.t, v}
}
func (b *goBuffer) fill(off, n int64, seed uint64) { copy(b.v.Bytes()[off:off+n], pattern(n, seed)) }
func (b *goBuffer) wrong(off, n int64, seed uint64) string {
	want := pattern(n, seed)
	for i, got := range b.v.Bytes()[off : off+n] {
		if got != want[i] {
			return fmt.Sprintf("at=%d got=%d want=%d", i, got, want[i])
		}
	}
	return ""
}
func (b *goBuffer) zeros(off, n int64) bool {
	return string(b.v.Bytes()[off:off+n]) == string(make([]byte, n))
}
func (b *goBuffer) close() { b.t.Helper(); must(b.t, b.v.Close(context.Background())) }

type goRing struct {
	t *testing.T
	r *usrbio.Ring
}

func (l *goLibrary) ring(o ringOptions) ring {
	l.t.Helper()
	r, err := l.m.NewRing(context.Background(), usrbio.RingOptions{
		Entries: o.entries, Write: o.write, IODepth: o.depth, Timeout: time.Duration(o.timeoutMs) * time.Millisecond,
		Priority: usrbio.Priority(o.priority), AllowReadUncommitted: o.flags&1 != 0, ForbidReadHoles: o.flags&2 != 0,
	})
	must(l.t, err)
	return &goRing{l.t, r}
}
func (r *goRing) prep(b buffer, bufOff int64, f file, fileOff, n int64, userdata uint64) (int, syscall.Errno) {
	r.t.Helper()
	slot, err := r.r.Prepare(usrbio.Request{File: f.(*goFile).r, FileOffset: fileOff, Iov: b.(*goBuffer).v, IovOffset: bufOff, Bytes: n, Userdata: userdata})
	return slot, errnoOf(r.t, err)
}
func (r *goRing) submit() { r.t.Helper(); must(r.t, r.r.Submit()) }
func (r *goRing) wait(most, least int, limit time.Duration) []cqe {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dst := make([]usrbio.Completion, most)
	n, err := r.r.Wait(ctx, dst, least)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		r.t.Fatalf("wait: %v", err)
	}
	var all []cqe
	for _, d := range dst[:n] {
		all = append(all, cqe{d.Slot, d.Result, d.Userdata})
	}
	return all
}
func (r *goRing) close() { r.t.Helper(); must(r.t, r.r.Close(context.Background())) }

func errnoOf(t *testing.T, err error) syscall.Errno {
	t.Helper()
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		t.Fatalf("%v has no errno", err)
	}
	return errno
}

// wantErrno compares the errno of an error.
func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
