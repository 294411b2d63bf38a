package usrbio

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"
)

func requests(b rig, n int, bytes int64) []Request {
	q := make([]Request, n)
	for i := range q {
		off := int64(i) * bytes
		q[i] = Request{File: b.f, FileOffset: off, Iov: b.v, IovOffset: off, Bytes: bytes}
	}
	return q
}

func TestDo(t *testing.T) {
	for _, entries := range []int{1, 3, 128} {
		b := fixture(t, RingOptions{Entries: entries})
		b.p.reverse.Store(true)
		q := requests(b, 32, 1024)
		if err := b.r.Do(soon(t), q); err != nil {
			t.Fatal(err)
		}
		for i := range q {
			if q[i].Result != 1024 || q[i].Err() != nil {
				t.Errorf("request %d: %d, %v", i, q[i].Result, q[i].Err())
			}
		}
		if !bytes.Equal(b.v.Bytes()[:32<<10], b.p.content(42)) {
			t.Error("the bytes read are not the file's")
		}
		if err := b.r.Do(bg, nil); err != nil {
			t.Errorf("nothing to do: %v", err)
		}
	}
}

func TestDoRefused(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 2})
	q := requests(b, 8, 1024)
	q[5].Bytes = 0
	if err := b.r.Do(soon(t), q); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("do: %v", err)
	}
	for i, r := range q {
		want := int64(1024)
		if i >= 5 {
			want = -int64(syscall.ECANCELED)
		}
		if r.Result != want {
			t.Errorf("request %d: %d, want %d", i, r.Result, want)
		}
	}
	q = requests(b, 1, 0)
	if err := b.r.Do(soon(t), q); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a single request that is refused: %v", err)
	}
	if b.r.InFlight() != 0 {
		t.Errorf("%d in flight", b.r.InFlight())
	}
}

// A Do that ended early leaves completions behind; the next Do ignores them.
func TestDoAfterEarlyEnd(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 4})
	b.p.stalled.Store(true)
	ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
	defer cancel()
	q := requests(b, 6, 1024)
	if err := b.r.Do(ctx, q); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("do: %v", err)
	}
	for i, r := range q {
		want := -int64(syscall.EINPROGRESS)
		if i >= 4 {
			want = -int64(syscall.ECANCELED)
		}
		if r.Result != want {
			t.Errorf("request %d: %d, want %d", i, r.Result, want)
		}
	}
	b.p.stalled.Store(false)
	b.r.Submit() // the peer has consumed the first one
	next := requests(b, 6, 512)
	if err := b.r.Do(soon(t), next); err != nil {
		t.Fatal(err)
	}
	for i, r := range next {
		if r.Result != 512 {
			t.Errorf("request %d: %d", i, r.Result)
		}
	}
	if q[0].Result != -int64(syscall.EINPROGRESS) {
		t.Error("an abandoned request was touched")
	}
}

// A Do that ends before its turn has begun nothing, and its requests say so.
func TestDoBeforeItsTurn(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 4})
	over, cancel := context.WithCancel(bg)
	cancel()
	do := func(what string, ctx context.Context) {
		t.Helper()
		q := requests(b, 3, 1024)
		if err := b.r.Do(ctx, q); err != ctx.Err() || err == nil {
			t.Errorf("%s: %v", what, err)
		}
		for i, r := range q {
			if r.Result != -int64(syscall.ECANCELED) {
				t.Errorf("%s: request %d: %d", what, i, r.Result)
			}
		}
		if n := b.r.InFlight(); n != 0 {
			t.Errorf("%s: %d in flight", what, n)
		}
	}
	for range 20 { // a select among what is ready would begin half of them
		do("over", over)
	}
	b.r.batch.turn <- struct{}{}
	ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
	defer cancel()
	do("another's turn", ctx)
	<-b.r.batch.turn
}

func TestDoShared(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 8})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				q := requests(b, 20, 256)
				if err := b.r.Do(soon(t), q); err != nil {
					t.Error(err)
					return
				}
				for i := range q {
					if q[i].Result != 256 {
						t.Errorf("request %d: %d", i, q[i].Result)
					}
				}
			}
		})
	}
	wg.Wait()
}
