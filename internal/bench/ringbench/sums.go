package ringbench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kv3fs/kv3fs/usrbio"
)

// copyThroughRing writes the content of every file once more, through a ring: a daemon keeps checksums only of
// what it writes itself.
func (f *files) copyThroughRing(ctx context.Context) (err error) {
	m, err := usrbio.Open(ctx, f.mount)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	const pieceBytes = 1 << 20
	iov, err := m.NewIov(ctx, pieceBytes, usrbio.IovOptions{})
	if err != nil {
		return err
	}
	ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 1, Write: true})
	if err != nil {
		return err
	}
	for r := range f.rings {
		for _, write := range []bool{false, true} {
			if err := f.copyFile(ctx, m, ring, iov, r, write); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *files) copyFile(ctx context.Context, m *usrbio.Mount, ring *usrbio.Ring, iov *usrbio.Iov, number int, write bool) (err error) {
	in, err := os.Open(f.path(f.data, number, write))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(f.path(f.mount, number, write), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	file, err := m.Register(ctx, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(context.Background())) }()
	for off := int64(0); off < f.sizeBytes; {
		n := min(int64(len(iov.Bytes())), f.sizeBytes-off)
		if _, err := in.ReadAt(iov.Bytes()[:n], off); err != nil {
			return err
		}
		request := []usrbio.Request{{File: file, FileOffset: off, Iov: iov, Bytes: n}}
		if err := ring.Do(ctx, request); err != nil {
			return err
		}
		if request[0].Result != n {
			return fmt.Errorf("write %s through a ring: result %d, want %d", out.Name(), request[0].Result, n)
		}
		off += n
	}
	return in.Sync()
}
