package usrbio

import (
	"context"
	"errors"
	"syscall"
)

// Request is one transfer for Do: Bytes bytes between Offset in File and
// IovOffset in Iov, in the ring's direction.
type Request struct {
	File      *File
	Offset    int64
	Iov       *Iov
	IovOffset int64
	Bytes     int64

	// Result is set by Do: bytes moved or a negative errno. -EINPROGRESS: Do
	// ended before the request did, and its memory still belongs to the daemon.
	// -ECANCELED: Do ended before the request began.
	Result int64
}

// Err is nil or the errno in Result.
func (r *Request) Err() error { return Completion{Result: r.Result}.Err() }

// batch is what Do keeps between calls.
type batch struct {
	turn   chan struct{} // holds a token while a goroutine is in Do
	number uint32        // tells the completions of this call from those of an earlier one
}

// Do prepares all requests, as many at a time as the ring takes, and waits for
// all of them. The results are in the requests; the error is only about the
// ring or a request that Prepare refused, after which the rest is not begun but
// what was begun is waited for.
//
// A ring used with Do is used with nothing else: Do takes every completion for
// its own. Goroutines may share it and take turns. With a positive IODepth the
// number of requests must be a multiple of it.
func (r *Ring) Do(ctx context.Context, requests []Request) error {
	select {
	case r.batch.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.batch.turn }()
	r.batch.number++
	for i := range requests {
		requests[i].Result = -int64(syscall.ECANCELED)
	}
	var (
		done    [64]Completion
		begun   int
		refused error
	)
	for left := len(requests); left > 0; {
		first := begun
		for ; begun < len(requests) && refused == nil; begun++ {
			q := &requests[begun]
			tag := uint64(r.batch.number)<<32 | uint64(begun)
			_, err := r.Prepare(q.File, q.Offset, q.Iov, q.IovOffset, q.Bytes, tag)
			if errors.Is(err, ErrRingFull) {
				break
			}
			if err != nil {
				refused, left = err, left-(len(requests)-begun)
				break
			}
			q.Result = -int64(syscall.EINPROGRESS)
		}
		if begun > first {
			if err := r.Submit(); err != nil {
				return err
			}
		}
		if left == 0 {
			break
		}
		n, err := r.Wait(ctx, done[:], 1)
		for _, c := range done[:n] {
			if uint32(c.Userdata>>32) == r.batch.number {
				requests[uint32(c.Userdata)].Result = c.Result
				left--
			}
		}
		if err != nil {
			return err
		}
	}
	return refused
}
