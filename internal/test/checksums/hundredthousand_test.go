package checksums

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

// victim is a file in a data directory in memory, mapped, so that it can be damaged without a trace.
type victim struct {
	file    *usrbio.File
	content []byte
	mem     []byte
	at      int // of the damage
	good    []byte
}

// spoil damages it: a bit, a byte, or a sector.
func (v *victim) spoil(rng *rand.Rand) {
	const sector = 512
	n := 1
	if rng.IntN(4) == 0 {
		n = sector
	}
	v.at = rng.IntN(len(v.content))
	n = min(n, len(v.content)-v.at)
	bad := v.mem[v.at:][:n]
	v.good = append(v.good[:0], bad...)
	switch {
	case n > 1 && rng.IntN(2) == 0:
		clear(bad)
	case n > 1:
		copy(bad, random(rng, int64(n)))
	default:
		bad[0] ^= 1 << rng.IntN(8)
	}
	if bytes.Equal(bad, v.good) {
		bad[0]++
	}
}

func (v *victim) mend() { copy(v.mem[v.at:], v.good) }

// 10^5 times, stored bytes are damaged behind a running daemon's back and read through a ring: none are served, and all are
// once they are mended.
func TestServesNoneOf100000(t *testing.T) {
	const (
		times, files, depth = 100_000, 256, 128
		most                = 2*rangeBytes + 4096
	)
	rng := newRand(t)
	place := places(t)["memory"]
	needFineTimes(t, place.Data)
	place.Flags = append(place.Flags, "--deadline", "5m") // a batch of 128 may take long on a busy machine
	d := daemontest.ServeWith(t, place)
	c := newClient(t, d.Mount)
	defer c.close()
	var all []*victim
	for i := range files {
		size := 1 + rng.Int64N(4<<10)
		if i%32 == 0 {
			size = 1 + rng.Int64N(most)
		}
		v := &victim{content: random(rng, size)}
		name := fmt.Sprint("f", i)
		w, err := os.OpenFile(filepath.Join(d.Mount, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		c.ringWrite(w, v.content, 0)
		f, err := os.Open(filepath.Join(d.Mount, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		stored, err := os.OpenFile(filepath.Join(d.Data, name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		v.mem, err = unix.Mmap(int(stored.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err := errors.Join(err, stored.Close(), w.Close()); err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(v.mem)
		if !bytes.Equal(v.mem, v.content) { // a store to a page that was read leaves no trace
			t.Fatalf("%s is stored as something else", name)
		}
		if v.file, err = c.m.Register(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	iov, err := c.m.NewIov(t.Context(), depth*most, usrbio.IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ring, err := c.m.NewRing(t.Context(), usrbio.RingOptions{Entries: depth})
	if err != nil {
		t.Fatal(err)
	}
	requests := make([]usrbio.Request, depth)
	read := func(some []*victim) {
		t.Helper()
		for i, v := range some {
			requests[i] = usrbio.Request{File: v.file, Iov: iov, IovOffset: int64(i) * most, Bytes: int64(len(v.content))}
		}
		if err := ring.Do(t.Context(), requests[:len(some)]); err != nil {
			t.Fatal(err)
		}
	}
	for done := 0; done < times; done += depth {
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		some := all[:depth]
		for _, v := range some {
			v.spoil(rng)
		}
		read(some)
		for i, v := range some {
			switch got := requests[i].Result; {
			case got == -int64(syscall.EIO):
			case got < 0:
				t.Fatalf("damage %d: the read failed otherwise: %v", done+i, syscall.Errno(-got))
			default:
				t.Fatalf("damage %d, of %d bytes at %d of %d, was served: %d", done+i, len(v.good), v.at, len(v.content), got)
			}
			v.mend()
		}
		read(some)
		for i, v := range some {
			got := requests[i].Result
			if got < 0 {
				t.Fatalf("damage %d is mended: %v", done+i, syscall.Errno(-got))
			}
			if got != int64(len(v.content)) || !bytes.Equal(iov.Bytes()[int64(i)*most:][:got], v.content) {
				t.Fatalf("damage %d is mended: %d of %d bytes", done+i, got, len(v.content))
			}
		}
	}
}
