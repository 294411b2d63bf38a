package restarts

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	blockBytes  = 4096
	outstanding = 64 // reads, and as many writes
	blocks      = 512
)

// load is a client that keeps reads and writes outstanding on two rings, and knows what each block must hold. Its first file is only read; the second
// one is written and verified at the end.
type load struct {
	t     *testing.T
	rng   *rand.Rand
	dir   string // data directory
	mount *usrbio.Mount
	iov   *usrbio.Iov
	rings [2]*usrbio.Ring // reads, writes
	files [2]*usrbio.File
	under [2]*os.File

	flying   [2]map[uint64]flight // by userdata
	free     [2][]int             // buffers
	next     uint64
	versions [blocks]uint64 // of the file that is written, as last acknowledged; a block is written by one request at a time
	busy     [blocks]bool
	canaries map[int]uint64 // of buffers that no request has
	done     int
	progress chan struct{} // a value when some were done
}

type flight struct {
	buffer, block int
	version       uint64
}

func pattern(file int, block int, version uint64) []byte {
	b := make([]byte, blockBytes)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], version<<40|uint64(file)<<32|uint64(block)<<16|uint64(i))
	}
	return b
}

func newLoad(t *testing.T, mount, data string, rng *rand.Rand) *load {
	t.Helper()
	l := &load{t: t, rng: rng, dir: data, canaries: map[int]uint64{}, progress: make(chan struct{}, 1)}
	for i, name := range []string{"read", "written"} {
		var all []byte
		for b := range blocks {
			all = append(all, pattern(i, b, 0)...)
		}
		if err := os.WriteFile(filepath.Join(mount, name), all, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if l.mount, err = usrbio.Open(ctx, mount); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.close() })
	if l.iov, err = l.mount.NewIov(ctx, 2*outstanding*blockBytes, usrbio.IovOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"read", "written"} {
		if l.rings[i], err = l.mount.NewRing(ctx, usrbio.RingOptions{Entries: outstanding, Write: i == 1}); err != nil {
			t.Fatal(err)
		}
		if l.under[i], err = os.OpenFile(filepath.Join(mount, name), os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
		if l.files[i], err = l.mount.Register(ctx, l.under[i]); err != nil {
			t.Fatal(err)
		}
		l.flying[i] = map[uint64]flight{}
		for b := range outstanding {
			l.free[i] = append(l.free[i], i*outstanding+b)
			l.guard(i*outstanding + b)
		}
	}
	return l
}

func (l *load) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if l.mount != nil {
		_ = l.mount.Close(ctx) // its mount may have ended
	}
	for _, f := range l.under {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (l *load) buffer(b int) []byte { return l.iov.Bytes()[b*blockBytes : (b+1)*blockBytes] }

// guard writes a canary into a buffer that no request has, and check looks whether it is still there.
func (l *load) guard(b int) {
	l.canaries[b] = l.rng.Uint64()
	for i := 0; i < blockBytes; i += 8 {
		binary.LittleEndian.PutUint64(l.buffer(b)[i:], l.canaries[b])
	}
}

func (l *load) check(b int) {
	for i := 0; i < blockBytes; i += 8 {
		if got := binary.LittleEndian.Uint64(l.buffer(b)[i:]); got != l.canaries[b] {
			l.t.Errorf("byte %d of buffer %d was written after its completion: %#x, not %#x", i, b, got, l.canaries[b])
			return
		}
	}
}

// fill has as many requests outstanding as fit.
func (l *load) fill() error {
	for i := range l.rings {
		for len(l.free[i]) > 0 {
			block := l.rng.IntN(blocks)
			if i == 1 && l.busy[block] {
				continue
			}
			b := l.free[i][len(l.free[i])-1]
			l.check(b)
			f := flight{buffer: b, block: block}
			if i == 1 {
				f.version = l.versions[block] + 1
				copy(l.buffer(b), pattern(1, block, f.version))
				l.busy[block] = true
			}
			l.next++
			if _, err := l.rings[i].Prepare(usrbio.Request{File: l.files[i], FileOffset: int64(block) * blockBytes, Iov: l.iov, IovOffset: int64(b) * blockBytes, Bytes: blockBytes, Userdata: l.next}); err != nil {
				return fmt.Errorf("prepare: %w", err)
			}
			l.free[i] = l.free[i][:len(l.free[i])-1]
			l.flying[i][l.next] = f
		}
		if err := l.rings[i].Submit(); err != nil {
			return fmt.Errorf("submit: %w", err)
		}
	}
	return nil
}

// reap takes what is complete, and at least so many of each ring.
func (l *load) reap(ctx context.Context, atLeast int) error {
	var got [outstanding]usrbio.Completion
	for i := range l.rings {
		least := min(atLeast, len(l.flying[i]))
		if least == 0 && atLeast > 0 {
			continue
		}
		n, err := l.rings[i].Wait(ctx, got[:], least)
		for _, c := range got[:n] {
			f, known := l.flying[i][c.Userdata]
			switch {
			case !known:
				return fmt.Errorf("a completion of a request that is not outstanding: %+v", c)
			case c.Result != blockBytes:
				return fmt.Errorf("block %d: result %d", f.block, c.Result)
			case i == 0:
				if got, want := l.buffer(f.buffer), pattern(0, f.block, 0); string(got) != string(want) {
					return fmt.Errorf("block %d was read wrongly: it begins with %x, not %x", f.block, got[:16], want[:16])
				}
			default:
				l.versions[f.block], l.busy[f.block] = f.version, false
			}
			delete(l.flying[i], c.Userdata)
			l.free[i] = append(l.free[i], f.buffer)
			l.guard(f.buffer)
			l.done++
		}
		if err != nil {
			return fmt.Errorf("wait for %d of %d: %w", least, len(l.flying[i]), err)
		}
	}
	return nil
}

// runUntil works until stop is closed, and then collects what is outstanding.
func (l *load) runUntil(ctx context.Context, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return l.reap(ctx, outstanding)
		default:
		}
		if err := l.fill(); err != nil {
			return err
		}
		if err := l.reap(ctx, 1); err != nil {
			return err
		}
		select {
		case l.progress <- struct{}{}:
		default:
		}
	}
}

// verify compares the files with what was acknowledged.
func (l *load) verify() {
	l.t.Helper()
	for i, f := range l.flying {
		if len(f) > 0 {
			l.t.Errorf("ring %d: %d requests were never completed", i, len(f))
		}
	}
	for b := range 2 * outstanding {
		l.check(b)
	}
	all, err := os.ReadFile(filepath.Join(l.dir, "written"))
	if err != nil || len(all) != blocks*blockBytes {
		l.t.Fatalf("%d bytes, %v", len(all), err)
	}
	for b := range blocks {
		if string(all[b*blockBytes:(b+1)*blockBytes]) != string(pattern(1, b, l.versions[b])) {
			l.t.Errorf("block %d is not as it was last acknowledged, version %d; it begins with %x", b, l.versions[b], all[b*blockBytes:b*blockBytes+16])
		}
	}
}
