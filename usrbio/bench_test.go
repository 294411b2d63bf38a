package usrbio

import (
	"context"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/wire"
)

func benchRing(b *testing.B, entries int) (*Ring, *peer, *File, *Iov) {
	m, p := testMount(b)
	p.execute = func(_ bool, a wire.Args) int64 { return int64(a.Len) }
	v, err := m.NewIov(bg, 1<<20, IovOptions{})
	if err != nil {
		b.Fatal(err)
	}
	r, err := m.NewRing(bg, RingOptions{Entries: entries})
	if err != nil {
		b.Fatal(err)
	}
	return r, p, p.file(b, m, 7, 2, []byte{0}), v
}

// The cost of each half of a request; what the peer does is not measured.
func BenchmarkHalves(b *testing.B) {
	const batch = 1024
	r, p, f, v := benchRing(b, batch)
	p.stalled.Store(true)
	dst := make([]Completion, batch)
	var prepare, wait time.Duration
	rounds := 0
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		for i := range int64(batch) {
			if _, err := r.Prepare(Request{File: f, FileOffset: i << 12, Iov: v, Bytes: 4096, Userdata: uint64(i)}); err != nil {
				b.Fatal(err)
			}
		}
		prepare += time.Since(start)
		p.mu.Lock()
		for _, r := range p.rings {
			p.drain(r)
		}
		p.mu.Unlock()
		start = time.Now()
		if _, err := r.Wait(context.Background(), dst, batch); err != nil {
			b.Fatal(err)
		}
		wait += time.Since(start)
		rounds += batch
	}
	b.ReportMetric(float64(prepare.Nanoseconds())/float64(rounds), "ns/prepare")
	b.ReportMetric(float64(wait.Nanoseconds())/float64(rounds), "ns/reap")
}

// A request and its completion, with the peer on another thread.
func BenchmarkRoundTrip(b *testing.B) {
	for _, batch := range []int{1, 16, 256} {
		b.Run("batch="+string(rune('0'+batch/100))+string(rune('0'+batch/10%10))+string(rune('0'+batch%10)), func(b *testing.B) {
			r, _, f, v := benchRing(b, 256)
			dst := make([]Completion, batch)
			ctx := context.Background()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if _, err := r.Prepare(Request{File: f, Iov: v, Bytes: 4096}); err != nil {
					b.Fatal(err)
				}
				if n++; n%batch != 0 {
					continue
				}
				r.Submit()
				if _, err := r.Wait(ctx, dst, batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSubmit(b *testing.B) {
	r, p, _, _ := benchRing(b, 16)
	p.stalled.Store(true)
	b.ReportAllocs()
	for b.Loop() {
		r.Submit()
	}
}

func BenchmarkPoll(b *testing.B) {
	r, _, _, _ := benchRing(b, 16)
	dst := make([]Completion, 16)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		r.Wait(ctx, dst, 0)
	}
}
