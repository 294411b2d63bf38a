package conformance

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// rawRing is a ring driven by hand after the specification, without either library.
type rawRing struct {
	t      *testing.T
	w      *world
	name   string
	mem    *shm.Mapping
	layout wire.Layout
	submit *shm.NamedSem
	head   int32
	tail   int32
}

// object creates a shared memory object and returns its path.
func object(t *testing.T, sizeBytes int64) (path string, mem *shm.Mapping) {
	t.Helper()
	name := "hf3fs-iov-" + wire.NewUUID().String()
	path = filepath.Join(shm.Dir, name)
	if sizeBytes == 0 {
		must(t, os.WriteFile(path, nil, 0o600))
	} else {
		m, err := shm.Create(name, sizeBytes, 0o600)
		must(t, err)
		t.Cleanup(m.Unmap)
		mem = m
	}
	t.Cleanup(func() { os.Remove(path) })
	return path, mem
}

// newRawRing registers a ring whose link name ends in suffix, as in ".r0.t0".
func newRawRing(t *testing.T, w *world, entries int, suffix, submitLink string) *rawRing {
	t.Helper()
	path, mem := object(t, wire.RingBytes(entries))
	layout, _ := wire.LayoutOf(mem.Len())
	r := &rawRing{t: t, w: w, mem: mem, layout: layout, name: wire.NewUUID().String() + suffix}
	must(t, os.Symlink(path, w.iovs(r.name)))
	t.Cleanup(func() { os.Remove(w.iovs(r.name)) })
	target, err := os.Readlink(w.iovs(submitLink))
	must(t, err)
	r.submit, err = shm.OpenSem(filepath.Base(target)[len("sem."):])
	must(t, err)
	t.Cleanup(func() { r.submit.Close(false) })
	return r
}

// push queues a request at args[index].
func (r *rawRing) push(index int32, a wire.Args) {
	var args [wire.ArgsBytes]byte
	a.Encode(&args)
	r.mem.CopyIn(r.layout.ArgsOff(index), args[:])
	var sqe [wire.SqeBytes]byte
	s := wire.Sqe{Index: index, Userdata: a.Userdata}
	s.Encode(&sqe)
	r.mem.CopyIn(r.layout.SqeOff(r.head), sqe[:])
	r.head = r.layout.Next(r.head)
	r.mem.StoreInt32(wire.OffSqeHead, r.head)
}

// reap waits for at least n completions and returns all that are there.
func (r *rawRing) reap(n int, limit time.Duration) (got []wire.Cqe) {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		for head := r.mem.LoadInt32(wire.OffCqeHead); r.tail != head; {
			var b [wire.CqeBytes]byte
			var c wire.Cqe
			r.mem.CopyOut(b[:], r.layout.CqeOff(r.tail))
			c.Decode(&b)
			got = append(got, c)
			r.tail = r.layout.Next(r.tail)
			r.mem.StoreInt32(wire.OffCqeTail, r.tail)
		}
		if len(got) >= n || time.Now().After(end) {
			return got
		}
	}
}

// rawIov registers a buffer.
func rawIov(t *testing.T, w *world, sizeBytes int64, suffix string) (wire.UUID, *shm.Mapping) {
	t.Helper()
	path, mem := object(t, sizeBytes)
	id := wire.NewUUID()
	must(t, os.Symlink(path, w.iovs(id.String()+suffix)))
	t.Cleanup(func() { os.Remove(w.iovs(id.String() + suffix)) })
	return id, mem
}
