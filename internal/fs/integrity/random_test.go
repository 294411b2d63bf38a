package integrity

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// others are what other processes do to a file.
type others struct {
	rng  *rand.Rand
	path string
	fd   int    // open for writing, or negative
	mem  []byte // mapped for writing, or nil
}

const fileBytes = 6 * RangeBytes

func (x *others) writer() (fd int, done func(), err error) {
	if x.fd >= 0 {
		return x.fd, func() {}, nil
	}
	fd, err = unix.Open(x.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	if x.rng.IntN(3) == 0 {
		x.fd = fd
		return fd, func() {}, nil
	}
	return fd, func() { unix.Close(fd) }, nil
}

// leave ends what x holds.
func (x *others) leave() {
	if x.mem != nil {
		_ = unix.Munmap(x.mem)
		x.mem = nil
	}
	if x.fd >= 0 {
		unix.Close(x.fd)
		x.fd = -1
	}
}

// act does one thing to the file that the daemon does not see. mayMap tells it of a mapping.
func (x *others) act(t testing.TB, mayMap func()) {
	t.Helper()
	if err := x.try(mayMap); err != nil {
		t.Fatal(err)
	}
}

func (x *others) try(mayMap func()) error {
	fd, done, err := x.writer()
	if err != nil {
		return err
	}
	defer done()
	off := x.rng.Int64N(fileBytes)
	n := 1 + x.rng.Int64N(2*RangeBytes)
	switch x.rng.IntN(8) {
	case 0, 1:
		_, err = unix.Pwrite(fd, random(x.rng, n), off)
	case 2:
		err = unix.Ftruncate(fd, off)
	case 3:
		err = unix.Fallocate(fd, uint32([]int{0, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE}[x.rng.IntN(2)]), off, n)
	case 4:
		from := x.rng.Int64N(fileBytes)
		to := off
		_, err = unix.CopyFileRange(fd, &from, fd, &to, int(min(n, max(from-to, to-from))), 0)
	case 5:
		if err = os.Rename(x.path, x.path+".moved"); err == nil {
			err = os.Rename(x.path+".moved", x.path)
		}
	case 6:
		if err = os.Link(x.path, x.path+".link"); err == nil {
			err = os.Remove(x.path + ".link")
		}
	default:
		if x.mem == nil {
			mayMap()
			if err = unix.Ftruncate(fd, fileBytes); err != nil {
				break
			}
			x.mem, err = unix.Mmap(fd, 0, fileBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// store changes mapped bytes, of which nobody is told.
func (x *others) store(t testing.TB) {
	var st unix.Stat_t
	if err := unix.Stat(x.path, &st); err != nil {
		t.Fatal(err)
	}
	if x.mem == nil || st.Size == 0 {
		return
	}
	x.mem[x.rng.Int64N(min(st.Size, fileBytes))]++
}

// Nothing that others do to a file, in any order with what the daemon does, is taken for damage.
func TestRandomOperations(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		var old []*Store // of daemons that were killed
		o := create(t, s, filepath.Join(dir, "f"))
		x := &others{rng: rng, path: o.path, fd: -1}
		verified := int64(0)
		for range 600 {
			off := rng.Int64N(fileBytes)
			if rng.IntN(2) == 0 {
				off = off / RangeBytes * RangeBytes
			}
			switch op := rng.IntN(20); {
			case op < 5:
				o.write(random(rng, 1+rng.Int64N(3*RangeBytes)), off)
			case op < 12:
				_, bad, found, n := o.read(off, 1+rng.Int64N(4*RangeBytes))
				if verified += n; found {
					t.Fatalf("%s: a false alarm: %v", dir, bad)
				}
			case op < 14:
				x.act(t, o.sums.Unseen)
			case op < 16:
				x.store(t)
			case op == 16:
				x.leave()
			case op == 17:
				fn := func() error { return unix.Ftruncate(o.fd, off) }
				if rng.IntN(2) == 0 {
					fn = func() error {
						return unix.Fallocate(o.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, RangeBytes)
					}
				}
				if err := o.sums.Change(o.fd, fn); err != nil {
					t.Fatal(err)
				}
			case op == 18:
				if err := o.sums.Touch(o.fd, func() error {
					return unix.UtimesNanoAt(unix.AT_FDCWD, o.path, []unix.Timespec{{Sec: rng.Int64N(1 << 30)}, {Sec: rng.Int64N(1 << 30)}}, 0)
				}); err != nil {
					t.Fatal(err)
				}
			default:
				if rng.IntN(3) == 0 { // the daemon is killed
					old = append(old, s)
					unix.Close(o.fd)
					s = openStore(t, dir)
				} else {
					if o.close(); rng.IntN(2) == 0 {
						s.save(rng.IntN(2) == 0)
					}
				}
				o = open(t, s, o.path, []int{unix.O_RDONLY, unix.O_RDWR}[rng.IntN(2)])
				if x.mem != nil {
					o.sums.Unseen()
				}
				if rng.IntN(2) == 0 {
					_, bad, found, n := o.read(0, fileBytes)
					if verified += n; found {
						t.Fatalf("%s: a false alarm: %v", dir, bad)
					}
				}
				if o.readonly() {
					o.close()
					o = open(t, s, o.path, unix.O_RDWR)
				}
			}
		}
		if verified == 0 {
			t.Errorf("%s: nothing was verified", dir)
		}
		x.leave()
		o.close()
		s.Close()
		for _, s := range old {
			s.kill()
		}
	}
}

func (o *opened) readonly() bool {
	flags, err := unix.FcntlInt(uintptr(o.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY
}

// Many write to one file, each in a part of its own, another process in one more, and others read all
// of it: no sum is wrong that counts as certain, and none at all once they have finished.
func TestWritesAtOnce(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, filepath.Join(dir, "f"))
		const writers, part = 4, 3*RangeBytes + 1000 // neighbours share ranges
		var work sync.WaitGroup
		var stop atomic.Bool
		content := make([]byte, writers*part)
		for i := range int64(writers) {
			seeded := rand.New(rand.NewPCG(rng.Uint64(), 1))
			work.Go(func() {
				for range 60 {
					at := seeded.Int64N(part)
					b := random(seeded, 1+seeded.Int64N(part-at))
					copy(content[i*part+at:], b)
					o.write(b, i*part+at)
				}
			})
		}
		var readers sync.WaitGroup
		readers.Go(func() {
			for !stop.Load() {
				if _, bad, found, _ := o.read(0, writers*part); found && bad.Certain {
					t.Errorf("%s: a false alarm: %v", dir, bad)
				}
			}
		})
		work.Wait()
		stop.Store(true)
		readers.Wait()
		size := fileSize(t, o.fd)
		for range 2 {
			b, bad, found, verified := o.read(0, size)
			mustBe(t, dir, b, content[:size])
			if found {
				t.Errorf("%s: a false alarm: %v", dir, bad)
			}
			t.Logf("%d of %d bytes verified", verified, size)
		}
		o.close()
		s.Close()
	}
}
