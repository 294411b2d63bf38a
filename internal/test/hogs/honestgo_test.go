package hogs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

// rings is a session through package usrbio: a file, an iov and a ring for each direction.
type rings struct {
	limit  time.Duration
	m      *usrbio.Mount
	iov    *usrbio.Iov
	reads  *usrbio.Ring
	writes *usrbio.Ring
	os     *os.File
	file   *usrbio.File
}

// openRings connects with an iov of that many bytes. The file is created if it is not there.
func openRings(a honest, name string, iovBytes int64) (r *rings, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.Limit)
	defer cancel()
	r = &rings{limit: a.Limit}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.os, err = os.OpenFile(filepath.Join(a.Dir, name), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return r, err
	}
	if r.m, err = usrbio.Open(ctx, a.Mount); err != nil {
		return r, err
	}
	if r.iov, err = r.m.NewIov(ctx, iovBytes, usrbio.IovOptions{}); err != nil {
		return r, err
	}
	if r.reads, err = r.m.NewRing(ctx, usrbio.RingOptions{Entries: 16}); err != nil {
		return r, err
	}
	if r.writes, err = r.m.NewRing(ctx, usrbio.RingOptions{Entries: 16, Write: true}); err != nil {
		return r, err
	}
	r.file, err = r.m.Register(ctx, r.os)
	return r, err
}

func (r *rings) close() error {
	var errs []error
	if r.m != nil {
		ctx, cancel := context.WithTimeout(context.Background(), r.limit)
		defer cancel()
		errs = append(errs, r.m.Close(ctx))
	}
	if r.os != nil {
		errs = append(errs, r.os.Close())
	}
	return errors.Join(errs...)
}

// do runs requests of size bytes, one after the other in the file from at on, and in the iov
// from its beginning on.
func (r *rings) do(ring *usrbio.Ring, at, size int64, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	batch := make([]usrbio.Request, count)
	for i := range batch {
		batch[i] = usrbio.Request{File: r.file, FileOffset: at + int64(i)*size, Iov: r.iov, IovOffset: int64(i) * size, Bytes: size}
	}
	if err := ring.Do(ctx, batch); err != nil {
		return err
	}
	for i, q := range batch {
		if err := q.Err(); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		if q.Result != size {
			return fmt.Errorf("request %d: %d bytes, want %d", i, q.Result, size)
		}
	}
	return nil
}

// reader reads the same file, in batches of 8 times 128 KiB.
type reader struct {
	*rings
	content []byte
}

const (
	readBytes = 128 << 10
	readCount = 8
	fileSeed  = 1 << 20
)

func connectReader(a honest) (session, error) {
	content := make([]byte, readBytes*readCount)
	fill(content, fileSeed)
	if err := os.WriteFile(filepath.Join(a.Dir, "read"), content, 0o600); err != nil {
		return nil, err
	}
	r, err := openRings(a, "read", int64(len(content)))
	return reader{r, content}, err
}

func (r reader) call(uint64) error {
	clear(r.iov.Bytes())
	if err := r.do(r.reads, 0, readBytes, readCount); err != nil {
		return err
	}
	return compare(r.iov.Bytes(), r.content)
}

// writer writes and reads the same bytes back.
type writer struct{ *rings }

const writeBytes = 64 << 10

func connectWriter(a honest) (session, error) {
	r, err := openRings(a, "write", writeBytes)
	return writer{r}, err
}

func (w writer) call(n uint64) error {
	at := int64(n%16) * writeBytes
	fill(w.iov.Bytes(), n)
	if err := w.do(w.writes, at, writeBytes, 1); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	clear(w.iov.Bytes())
	if err := w.do(w.reads, at, writeBytes, 1); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return check(w.iov.Bytes(), n)
}

// newcomer connects for each call.
type newcomer struct{ a honest }

func connectNewcomer(a honest) (session, error) {
	content := make([]byte, writeBytes)
	fill(content, fileSeed)
	return newcomer{a}, os.WriteFile(filepath.Join(a.Dir, "new"), content, 0o600)
}

func (c newcomer) call(uint64) error {
	r, err := openRings(c.a, "new", writeBytes)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	err = r.do(r.reads, 0, writeBytes, 1)
	if err == nil {
		err = check(r.iov.Bytes(), fileSeed)
	}
	return errors.Join(err, r.close())
}

func (newcomer) close() error { return nil }
