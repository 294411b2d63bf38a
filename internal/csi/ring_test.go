package csi_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kv3fs/kv3fs/usrbio"
)

// ringEnv names the directory in which a process of this test binary is a client of rings.
const ringEnv = "KV3FS_TEST_CSI_RING"

// ringClient finds the mount as every client does, writes a file through a ring and reads it back.
func ringClient(dir string) int {
	if err := useRing(dir); err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	return 0
}

func useRing(dir string) (err error) {
	ctx := context.Background()
	m, err := usrbio.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	iov, err := m.NewIov(ctx, 1<<20, usrbio.IovOptions{})
	if err != nil {
		return err
	}
	defer iov.Close(ctx)
	f, err := os.OpenFile(filepath.Join(dir, "block"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()

	file, err := m.Register(ctx, f)
	if err != nil {
		return err
	}
	want := bytes.Repeat([]byte("kv"), 32<<10)
	for _, write := range []bool{true, false} {
		clear(iov.Bytes())
		if write {
			copy(iov.Bytes(), want)
		}
		r, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 4, Write: write})
		if err != nil {
			return err
		}
		q := []usrbio.Request{{File: file, Iov: iov, Bytes: int64(len(want))}}
		if err := r.Do(ctx, q); err != nil {
			return err
		}
		if q[0].Result != int64(len(want)) || !bytes.Equal(iov.Bytes()[:len(want)], want) {
			return fmt.Errorf("write %t: result %d", write, q[0].Result)
		}
		if err := r.Close(ctx); err != nil {
			return err
		}
	}
	fmt.Println("mount", m.Path())
	return nil
}
