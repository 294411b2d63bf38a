package usrbio

import (
	"context"
	"errors"
	"syscall"
)

// Request is one transfer between a File and an Iov, in the ring's direction.
type Request struct {
	File       *File
	FileOffset int64 // in bytes
	Iov        *Iov
	IovOffset  int64  // in bytes
	Bytes      int64  // how many to move, at least 1
	Userdata   uint64 // comes back in the Completion; Do ignores it

	// Result is set by Do: bytes moved or a negative errno. -EINPROGRESS: Do
	// returned before the request ended, and its memory still belongs to the
	// daemon. -ECANCELED: Do returned before the request began.
	Result int64
}

// Err returns nil or the errno in Result.
func (r *Request) Err() error { return Completion{Result: r.Result}.Err() }

// batch is what Do keeps between calls.
type batch struct {
	turn   chan struct{} // holds a token while a goroutine is in Do
	number uint32        // tells the completions of this call from those of an earlier one
}

// Do prepares all requests, as many at a time as the ring takes, and waits for
// all of them. The results are in the requests; the error is about the ring or
// about a request that Prepare refused. After a refusal Do begins no more requests
// but waits for those it has begun.
//
// Use a ring either with Do or with Prepare and Wait, never both: Do takes every
// completion as its own. Goroutines may share the ring; their calls take turns.
// With a positive IODepth the number of requests must be a multiple of it.
func (r *Ring) Do(ctx context.Context, requests []Request) error {
	for i := range requests {
		requests[i].Result = -int64(syscall.ECANCELED)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case r.batch.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.batch.turn }()
	r.batch.number++
	var (
		done    [64]Completion
		begun   int
		refused error
	)
	for left := len(requests); left > 0; {
		first := begun
		for ; begun < len(requests) && refused == nil; begun++ {
			q := requests[begun]
			q.Userdata = uint64(r.batch.number)<<32 | uint64(begun)
			_, err := r.Prepare(q)
			if errors.Is(err, ErrRingFull) {
				break
			}
			if err != nil {
				refused, left = err, left-(len(requests)-begun)
				break
			}
			requests[begun].Result = -int64(syscall.EINPROGRESS)
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
