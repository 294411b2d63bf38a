package hostile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Iovs returns the path of a name in the control directory's iovs.
func Iovs(mount, name string) string { return filepath.Join(mount, "3fs-virt", "iovs", name) }

// NewObject creates a sparse object in /dev/shm and returns its path. It maps nothing, so
// the size may be beyond what this process could map.
func NewObject(sizeBytes int64) (path string, err error) {
	path = filepath.Join(shm.Dir, "kv3fs-hostile-"+wire.NewUUID().String())
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	if err := errors.Join(f.Truncate(sizeBytes), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

// Register links an object into iovs under a new id with this suffix, e.g. ".b4096" or
// ".r0.t0", and returns the id.
func Register(mount, path, suffix string) (wire.UUID, error) {
	id := wire.NewUUID()
	return id, os.Symlink(path, Iovs(mount, id.String()+suffix))
}

// NewIov registers sizeBytes of new memory, mapped.
func NewIov(mount string, sizeBytes int64) (wire.UUID, *shm.Mapping, error) {
	path, err := NewObject(sizeBytes)
	if err != nil {
		return wire.UUID{}, nil, err
	}
	defer os.Remove(path)
	mem, err := shm.Open(filepath.Base(path))
	if err != nil {
		return wire.UUID{}, nil, err
	}
	id, err := Register(mount, path, "")
	if err != nil {
		mem.Unmap()
	}
	return id, mem, err
}

// Ring is a ring driven by hand after the specification, without the checks of a client.
// It is for one goroutine at a time.
type Ring struct {
	Mem    *shm.Mapping
	Layout wire.Layout
	Path   string // of its object, which keeps its name until Close
	Name   string // of its link in iovs

	mount  string
	submit *shm.NamedSem
	head   int32
	tail   int32
}

// NewRing registers a ring whose link name ends in suffix, e.g. ".r0.t0" for one that reads
// and has no depth, ".w-4.t20.ph" for one of high priority that writes batches of 4.
func NewRing(mount string, entries int, suffix string) (*Ring, error) {
	path, err := NewObject(wire.RingBytes(entries))
	if err != nil {
		return nil, err
	}
	r := &Ring{mount: mount, Path: path}
	if r.Mem, err = shm.Open(filepath.Base(path)); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	r.Layout, _ = wire.LayoutOf(r.Mem.Len())
	link := "submit-ios"
	for _, p := range []string{".ph", ".pl"} {
		if strings.HasSuffix(suffix, p) || strings.Contains(suffix, p+".") {
			link += p
		}
	}
	id, err := Register(mount, path, suffix)
	if err == nil {
		r.Name = id.String() + suffix
		r.submit, err = OpenSubmit(mount, link)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// OpenSubmit opens the caller's submit semaphore that a link in iovs names: submit-ios,
// submit-ios.ph or submit-ios.pl.
func OpenSubmit(mount, link string) (*shm.NamedSem, error) {
	target, err := os.Readlink(Iovs(mount, link))
	if err != nil {
		return nil, err
	}
	return shm.OpenSem(strings.TrimPrefix(filepath.Base(target), "sem."))
}

// Push queues a request at args[index]. Post tells the daemon.
func (r *Ring) Push(index int32, a wire.Args) {
	var args [wire.ArgsBytes]byte
	a.Encode(&args)
	r.Mem.CopyIn(r.Layout.ArgsOff(index), args[:])
	var sqe [wire.SqeBytes]byte
	s := wire.Sqe{Index: index, Userdata: a.Userdata}
	s.Encode(&sqe)
	r.Mem.CopyIn(r.Layout.SqeOff(r.head), sqe[:])
	r.head = r.Layout.Next(r.head)
	r.Mem.StoreInt32(wire.OffSqeHead, r.head)
}

// Post posts the submit semaphore.
func (r *Ring) Post() { r.submit.Post() }

// Reap waits for at least n completions and returns all that are there, or those that came
// within the limit.
func (r *Ring) Reap(n int, limit time.Duration) (got []wire.Cqe) {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		for head := r.Mem.LoadInt32(wire.OffCqeHead); r.tail != head; {
			var b [wire.CqeBytes]byte
			var c wire.Cqe
			r.Mem.CopyOut(b[:], r.Layout.CqeOff(r.tail))
			c.Decode(&b)
			got = append(got, c)
			r.tail = r.Layout.Next(r.tail)
			r.Mem.StoreInt32(wire.OffCqeTail, r.tail)
		}
		if len(got) >= n || time.Now().After(end) {
			return got
		}
	}
}

// Close ends the registration, if there is one, and removes the object.
func (r *Ring) Close() {
	if r.Name != "" {
		_ = os.Remove(Iovs(r.mount, r.Name)) // the daemon may have ended it
	}
	if r.submit != nil {
		r.submit.Close(false)
	}
	r.Mem.Unmap()
	_ = os.Remove(r.Path)
}
