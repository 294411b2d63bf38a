package checksums

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// What is written through rings and then damaged is never served: before anybody has read it, and after.
func TestServesNoDamage(t *testing.T) {
	for name, o := range places(t) {
		t.Run(name, func(t *testing.T) {
			rng := newRand(t)
			d := daemontest.ServeWith(t, o)
			needFineTimes(t, d.Data)
			c := newClient(t, d.Mount)
			defer c.close()
			const files, size = 6, 3*rangeBytes + 4321
			served := 0
			for i := range files {
				path := filepath.Join(d.Mount, fmt.Sprintf("f%d", i))
				how := []int{os.O_WRONLY, os.O_RDWR}[i%2]
				if name != "disk" {
					how = os.O_WRONLY // a client with passthrough that may map it could have changed it unseen
				}
				f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_EXCL|how, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				want := random(rng, size)
				for off := int64(0); off < size; {
					n := min(1+rng.Int64N(2*rangeBytes), size-off)
					c.ringWrite(f, want[off:off+n], off)
					off += n
				}
				if err := errors.Join(f.Close(), os.Rename(path+".tmp", path)); err != nil {
					t.Fatal(err)
				}
				bad := filepath.Join(d.Data, fmt.Sprintf("f%d", i))
				waitForWriters(t, bad) // before the next open: with passthrough, that would share a descriptor that is still open for writing
				if f, err = os.Open(path); err != nil {
					t.Fatal(err)
				}
				for round := range 20 {
					if round > i%3 {
						got, err := c.ringRead(f, 0, iovBytes)
						if err != nil || !bytes.Equal(got, want) {
							t.Fatalf("%s, round %d: %d good bytes: %v", path, round, len(got), err)
						}
					}
					at := rng.Int64N(size)
					damage(t, bad, at)
					if got, err := c.ringRead(f, 0, iovBytes); err == nil {
						served++
						t.Errorf("%s, round %d: damage at %d of %d bytes was served", path, round, at, len(got))
					}
					damage(t, bad, at)
				}
				f.Close()
			}
			t.Logf("%d of %d served", served, files*20)
		})
	}
}

// A daemon is killed while clients write, and files are changed while it is gone. The next one calls nothing
// damaged, and finds damage of what was saved.
func TestKilled(t *testing.T) {
	rng := newRand(t)
	d := daemontest.ServeWith(t, places(t)["kernel"])
	want := map[string][]byte{}
	for round := range 4 {
		c := newClient(t, d.Mount)
		verified := 0
		for name, content := range want {
			f, err := os.Open(filepath.Join(d.Mount, name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.ringRead(f, 0, iovBytes)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("round %d, %s: %d of %d bytes: %v", round, name, len(got), len(content), err)
			}
			damage(t, filepath.Join(d.Data, name), rng.Int64N(int64(len(content))))
			if _, err := c.ringRead(f, 0, iovBytes); errors.Is(err, syscall.EIO) {
				verified++
			}
			f.Close()
			if err := os.Remove(filepath.Join(d.Mount, name)); err != nil {
				t.Fatal(err)
			}
			delete(want, name)
		}
		if round > 0 {
			t.Logf("round %d: sums of %d files were saved", round, verified)
		}
		for i := range 12 {
			name := fmt.Sprintf("r%d-%d", round, i)
			f, err := os.Create(filepath.Join(d.Mount, name))
			if err != nil {
				t.Fatal(err)
			}
			want[name] = random(rng, 1+rng.Int64N(iovBytes))
			c.ringWrite(f, want[name], 0)
			if i%3 == 0 { // and again: what was noted of the first does not hold
				want[name] = random(rng, int64(len(want[name])))
				c.ringWrite(f, want[name], 0)
			}
			f.Close()
		}
		if round%2 == 0 {
			d.Kill()
		} else if err := d.Stop(); err != nil {
			t.Fatal(err)
		}
		for name, content := range want {
			if rng.IntN(4) == 0 {
				f, err := os.OpenFile(filepath.Join(d.Data, name), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				content[0]++
				if _, err := f.WriteAt(content[:1], 0); err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
		}
		c.close()
		d.Start(t)
	}
}

// other is somebody who uses files of the mount and of the data directory, in any order.
type other struct {
	t    *testing.T
	rng  *rand.Rand
	c    *client
	d    *daemontest.Daemon
	open []*os.File
	maps [][]byte
}

const names = 4

func (o *other) path() string {
	dir := o.d.Mount
	if o.rng.IntN(3) == 0 {
		dir = o.d.Data
	}
	return filepath.Join(dir, fmt.Sprintf("f%d", o.rng.IntN(names)))
}

func (o *other) pick() *os.File {
	for len(o.open) < 3 {
		dir, flags := o.d.Mount, []int{os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC}[o.rng.IntN(3)]
		if o.rng.IntN(4) == 0 {
			dir = o.d.Data
		}
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("f%d", o.rng.IntN(names))), flags|os.O_CREATE, 0o666)
		if err != nil {
			o.t.Fatal(err)
		}
		o.open = append(o.open, f)
	}
	return o.open[o.rng.IntN(len(o.open))]
}

func (o *other) inMount(f *os.File) bool { return filepath.Dir(f.Name()) == o.d.Mount }

// check reads a file through a ring: nothing of it is damaged.
func (o *other) check() {
	name := fmt.Sprintf("f%d", o.rng.IntN(names))
	f, err := os.Open(filepath.Join(o.d.Mount, name))
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := o.c.ringRead(f, 0, iovBytes); err != nil {
		o.t.Fatalf("%s: a false alarm: %v\n%s", name, err, o.d.Log())
	}
}

func (o *other) step() {
	size := func() int64 { return 1 + o.rng.Int64N(5*rangeBytes) }
	f := o.pick()
	switch o.rng.IntN(14) {
	case 0, 1, 2:
		if o.inMount(f) {
			off := size()
			if o.rng.IntN(2) == 0 {
				off = off / rangeBytes * rangeBytes
			}
			o.c.ringWrite(f, random(o.rng, size()), off)
		}
	case 3:
		f.WriteAt(random(o.rng, size()), size())
	case 4:
		if a, err := os.OpenFile(o.path(), os.O_WRONLY|os.O_APPEND, 0); err == nil {
			a.Write(random(o.rng, size()))
			a.Close()
		}
	case 5:
		os.Truncate(o.path(), size())
	case 6:
		modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_ZERO_RANGE}
		unix.Fallocate(int(f.Fd()), modes[o.rng.IntN(4)], size(), size())
	case 7:
		from, to := size(), size()
		g := o.pick()
		unix.CopyFileRange(int(f.Fd()), &from, int(g.Fd()), &to, int(size()), 0)
		unix.IoctlFileClone(int(g.Fd()), int(f.Fd()))
	case 8:
		os.Rename(o.path(), o.path())
	case 9:
		link := o.path()
		os.Remove(link)
		os.Link(o.path(), link)
	case 10:
		if fd, err := unix.Open(o.d.Mount, unix.O_TMPFILE|unix.O_RDWR, 0o644); err == nil {
			g := os.NewFile(uintptr(fd), filepath.Join(o.d.Mount, "unnamed"))
			o.c.ringWrite(g, random(o.rng, size()), 0)
			to := filepath.Join(o.d.Mount, fmt.Sprintf("f%d", o.rng.IntN(names)))
			os.Remove(to)
			unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
			g.Close()
		}
	case 11:
		n := len(o.open) - 1
		o.open[n].Close()
		o.open = o.open[:n]
	case 12:
		// Not in a data directory in memory, where a mapping that was read from can be written to
		// without a trace.
		if !o.inMount(f) && inMemory(o.d.Data) {
			return
		}
		f.Truncate(4 * rangeBytes)
		if b, err := unix.Mmap(int(f.Fd()), 0, 4*rangeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			o.maps = append(o.maps, b)
			if len(o.maps) > 2 {
				unix.Munmap(o.maps[0])
				o.maps = o.maps[1:]
			}
		}
	default:
		if len(o.maps) > 0 {
			store(o.maps[o.rng.IntN(len(o.maps))], o.rng)
		}
	}
}

func (o *other) close() {
	for _, f := range o.open {
		f.Close()
	}
	for _, b := range o.maps {
		unix.Munmap(b)
	}
}

func TestNoFalseAlarm(t *testing.T) {
	for name, options := range places(t) {
		t.Run(name, func(t *testing.T) {
			o := &other{t: t, rng: newRand(t), d: daemontest.ServeWith(t, options)}
			o.c = newClient(t, o.d.Mount)
			defer o.c.close()
			defer o.close()
			for range 300 {
				o.step()
				if o.rng.IntN(2) == 0 {
					o.check()
				}
			}
		})
	}
}

// Many clients write the blocks of one file at once and read them back.
func TestManyAtOnce(t *testing.T) {
	for name, options := range places(t) {
		t.Run(name, func(t *testing.T) {
			d := daemontest.ServeWith(t, options)
			f, err := os.Create(filepath.Join(d.Mount, "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			rng := newRand(t)
			var work sync.WaitGroup
			var blocks atomic.Int64
			for i := range int64(4) {
				c := newClient(t, d.Mount)
				defer c.close()
				seeded := rand.New(rand.NewPCG(rng.Uint64(), 3))
				work.Go(func() {
					for range 40 {
						n := 1 + seeded.Int64N(3*rangeBytes) // neighbours share ranges
						b := random(seeded, n)
						c.ringWrite(f, b, i*3*rangeBytes+1000)
						got, err := c.ringRead(f, i*3*rangeBytes+1000, n)
						if err != nil || !bytes.Equal(got, b) {
							t.Errorf("%d bytes of client %d: %v", n, i, err)
							return
						}
						blocks.Add(1)
					}
				})
			}
			work.Wait()
			c := newClient(t, d.Mount)
			defer c.close()
			for range 2 {
				if _, err := c.ringRead(f, 0, iovBytes); err != nil {
					t.Error(err)
				}
			}
			t.Logf("%d blocks", blocks.Load())
		})
	}
}

// Clients write to one file through rings, through the mount, in the data directory and through mappings of either, all at
// once: what is read through rings is never called damaged. Once all have left, a file is compared again.
func TestWritersAtOnce(t *testing.T) {
	for name, options := range places(t) {
		t.Run(name, func(t *testing.T) {
			rng := newRand(t)
			d := daemontest.ServeWith(t, options)
			const files, size = 3, 5 * rangeBytes
			at := func(dir string, i int) string { return filepath.Join(dir, fmt.Sprint("f", i)) }
			for i := range files {
				if err := os.WriteFile(at(d.Mount, i), random(rng, size), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			var work sync.WaitGroup
			for i := range 8 {
				seeded := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
				c := newClient(t, d.Mount)
				defer c.close()
				work.Go(func() {
					for range 50 {
						if !changes(t, c, d, seeded, i, at) {
							return
						}
					}
				})
			}
			work.Wait()
			c := newClient(t, d.Mount)
			defer c.close()
			for i := range files {
				waitForWriters(t, at(d.Data, i))
				f, err := os.OpenFile(at(d.Mount, i), os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				content := random(rng, size)
				c.ringWrite(f, content, 0)
				f.Close()
				waitForWriters(t, at(d.Data, i))
				if f, err = os.Open(at(d.Mount, i)); err != nil {
					t.Fatal(err)
				}
				got, err := c.ringRead(f, 0, size)
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("f%d, once others have left: %d bytes, %v", i, len(got), err)
				}
				damage(t, at(d.Data, i), rng.Int64N(size))
				if _, err := c.ringRead(f, 0, size); err == nil && !inMemory(d.Data) {
					t.Errorf("f%d: damage was served once others had left", i)
				}
				f.Close()
			}
		})
	}
}

// changes is what one of several clients does to one of some files, in the data directory or the mount, or through rings.
func changes(t *testing.T, c *client, d *daemontest.Daemon, rng *rand.Rand, who int, at func(dir string, i int) string) (right bool) {
	n, off := 1+rng.Int64N(2*rangeBytes), rng.Int64N(4)*rangeBytes
	dir := []string{d.Mount, d.Data}[who%2]
	if who < 4 {
		dir = d.Mount
	}
	how := []int{os.O_RDWR, os.O_WRONLY}[rng.IntN(2)]
	f, err := os.OpenFile(at(dir, rng.IntN(3)), how, 0)
	if err != nil {
		t.Error(err)
		return false
	}
	defer f.Close()
	switch {
	case who < 3:
		c.ringWrite(f, random(rng, n), off)
	case who == 3:
		r, err := os.Open(f.Name())
		if err != nil {
			t.Error(err)
			return false
		}
		defer r.Close()
		if _, err := c.ringRead(r, 0, iovBytes); err != nil {
			t.Errorf("a false alarm: %v\n%s", err, d.Log())
			return false
		}
	case how == os.O_RDWR && rng.IntN(3) == 0:
		// Not in a data directory in memory, where a mapping that was read from is written to without a trace.
		if inMemory(d.Data) && dir == d.Data {
			break
		}
		b, err := unix.Mmap(int(f.Fd()), off, rangeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			break // without passthrough
		}
		for range 20 {
			store(b, rng)
		}
		unix.Munmap(b)
	case rng.IntN(8) == 0:
		err = os.Truncate(f.Name(), 1+rng.Int64N(5*rangeBytes))
	default:
		_, err = f.WriteAt(random(rng, n), off)
	}
	if err != nil {
		t.Error(err)
	}
	return err == nil
}
