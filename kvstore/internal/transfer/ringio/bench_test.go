package ringio_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/usrbio"
)

// BenchmarkRead reads batches of 256 MiB through the engine and through a plain ring, with
// equally many requests in flight.
func BenchmarkRead(b *testing.B) {
	const total, depth = 256 << 20, 32
	d := serve(b)
	content := bytes.Repeat([]byte("0123456789abcde"), total/15+1)[:total]
	if err := os.WriteFile(filepath.Join(d.Data, "f"), content, 0o644); err != nil {
		b.Fatal(err)
	}
	e := engine(b, d, ringio.Options{Streams: 1, Entries: depth})
	mem := shared(b, e, total)
	f := open(b, e, d, "f")

	ctx := context.Background()
	m, err := usrbio.Open(ctx, d.Mount)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close(ctx)
	iov, err := m.RegisterIov(ctx, mem.Name(), usrbio.IovOptions{})
	if err != nil {
		b.Fatal(err)
	}
	raw, err := os.Open(filepath.Join(d.Mount, "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer raw.Close()
	file, err := m.Register(ctx, raw)
	if err != nil {
		b.Fatal(err)
	}
	ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: depth})
	if err != nil {
		b.Fatal(err)
	}

	elsewhere := make([]byte, total)
	// verified checks what fn has read into memory, which begins as zeros.
	verified := func(mem []byte, fn func(*testing.B)) func(*testing.B) {
		return func(b *testing.B) {
			clear(mem)
			fn(b)
			if !bytes.Equal(mem, content) {
				b.Error("wrong bytes were read")
			}
		}
	}
	for _, size := range []int{32 << 10, 2 << 20} {
		through := func(mem []byte) func(*testing.B) {
			return verified(mem, func(b *testing.B) {
				b.SetBytes(total)
				ops := make([]transfer.Op, total/size)
				for b.Loop() {
					var wg sync.WaitGroup
					wg.Add(len(ops))
					for i := range ops {
						ops[i] = transfer.Op{File: f, Offset: int64(i * size), Buf: mem[i*size:][:size], Done: func(n int, err error) {
							if n != size || err != nil {
								b.Errorf("%d, %v", n, err)
							}
							wg.Done()
						}}
					}
					e.Do(b.Context(), ops)
					wg.Wait()
				}
			})
		}
		b.Run(fmt.Sprintf("ring/%dKiB", size>>10), verified(mem.Bytes(), func(b *testing.B) {
			b.SetBytes(total)
			for b.Loop() {
				if err := read(b.Context(), ring, file, iov, total, size, depth); err != nil {
					b.Fatal(err)
				}
			}
		}))
		b.Run(fmt.Sprintf("place/%dKiB", size>>10), through(mem.Bytes()))
		b.Run(fmt.Sprintf("staged/%dKiB", size>>10), through(elsewhere))
	}
}

// read keeps the ring full and waits for half of it at a time.
func read(ctx context.Context, r *usrbio.Ring, f *usrbio.File, v *usrbio.Iov, total, size, depth int) error {
	done := make([]usrbio.Completion, depth)
	for at, pending := 0, 0; at < total || pending > 0; {
		for ; at < total && pending < depth; pending++ {
			if _, err := r.Prepare(usrbio.Request{File: f, FileOffset: int64(at), Iov: v, IovOffset: int64(at), Bytes: int64(size)}); err != nil {
				return err
			}
			at += size
		}
		if err := r.Submit(); err != nil {
			return err
		}
		n, err := r.Wait(ctx, done, (pending+1)/2)
		if err != nil {
			return err
		}
		pending -= n
	}
	return nil
}
