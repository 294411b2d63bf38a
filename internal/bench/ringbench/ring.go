package ringbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

// waitLimit bounds how much longer than its time a run may take.
const waitLimit = 30 * time.Second

// ringContender drives rings. Each has its own goroutine, iov and file.
type ringContender struct {
	as    string
	c     testCase
	files *files
	mount *usrbio.Mount
	rings []ringWorker
}

type ringWorker struct {
	ring    *usrbio.Ring
	iov     *usrbio.Iov
	file    *usrbio.File
	stripes []stripe // one for each entry
	dst     []usrbio.Completion
}

func newRingContender(ctx context.Context, c testCase, f *files, as string) (_ *ringContender, err error) {
	r := &ringContender{as: as, c: c, files: f}
	if r.mount, err = usrbio.Open(ctx, f.mount); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = r.close() // err is the first error
		}
	}()
	for ring := range c.rings {
		w := ringWorker{dst: make([]usrbio.Completion, c.depth)}
		if w.iov, err = r.mount.NewIov(ctx, c.sizeBytes*int64(c.depth), usrbio.IovOptions{Reserve: true}); err != nil {
			return nil, err
		}
		if err = w.iov.Unlink(); err != nil { // if killed, no memory is left behind
			return nil, err
		}
		if w.ring, err = r.mount.NewRing(ctx, usrbio.RingOptions{Entries: c.depth, Write: c.write}); err != nil {
			return nil, err
		}
		mode := os.O_RDONLY
		if c.write {
			mode = os.O_WRONLY
		}
		file, err := os.OpenFile(f.path(f.mount, ring, c.write), mode, 0)
		if err != nil {
			return nil, err
		}
		w.file, err = r.mount.Register(ctx, file)
		file.Close()
		if err != nil {
			return nil, err
		}
		for i := range c.depth {
			w.stripes = append(w.stripes, newStripe(f.sizeBytes, c.sizeBytes, ring, i, c.depth))
		}
		r.rings = append(r.rings, w)
	}
	return r, nil
}

func (r *ringContender) name() string { return r.as }
func (r *ringContender) close() error { return r.mount.Close(context.Background()) }

func (r *ringContender) run(ctx context.Context, d time.Duration, round int) (sample, error) {
	for ring := range r.rings {
		for i := range r.c.depth {
			readyBuffer(r.window(ring, i), r.c, r.as, ring, i, round)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, d+waitLimit)
	defer cancel()
	s, err := together(len(r.rings), func(i int, start <-chan struct{}) (int64, error) {
		<-start
		return r.rings[i].work(ctx, r.c.sizeBytes, time.Now().Add(d))
	})
	if err != nil {
		return s, fmt.Errorf("ring: %w", err)
	}
	for ring, w := range r.rings {
		for at := range w.stripes {
			if r.c.write {
				err = r.files.checkWritten(r.window(ring, at), ring, w.stripes[at].last)
			} else {
				err = checkRead(r.window(ring, at), ring, w.stripes[at].last)
			}
			if err != nil {
				return s, fmt.Errorf("ring: %w", err)
			}
		}
	}
	return s, nil
}

func (r *ringContender) window(ring, entry int) []byte {
	size := r.c.sizeBytes
	return r.rings[ring].iov.Bytes()[int64(entry)*size : int64(entry+1)*size]
}

// buffers returns all windows of all rings.
func (r *ringContender) buffers() (all [][]byte) {
	for ring := range r.rings {
		for entry := range r.c.depth {
			all = append(all, r.window(ring, entry))
		}
	}
	return all
}

// work keeps the ring full until the deadline and then collects what is left. It waits
// for half of the entries at a time, so that the daemon can work on the other half and
// neither side is woken for every single request.
func (w *ringWorker) work(ctx context.Context, size int64, deadline time.Time) (requests int64, err error) {
	prepare := func(entry uint64) error {
		_, err := w.ring.Prepare(usrbio.Request{
			File: w.file, FileOffset: w.stripes[entry].next(),
			Iov: w.iov, IovOffset: int64(entry) * size,
			Bytes: size, Userdata: entry,
		})
		return err
	}
	for entry := range w.stripes {
		if err := prepare(uint64(entry)); err != nil {
			return 0, err
		}
	}
	if err := w.ring.Submit(); err != nil {
		return 0, err
	}
	over := false
	for pending := len(w.stripes); pending > 0; {
		n, err := w.ring.Wait(ctx, w.dst, (pending+1)/2)
		over = over || !time.Now().Before(deadline)
		for _, c := range w.dst[:n] {
			if c.Result != size {
				return requests, fmt.Errorf("request of %d bytes: %w", size, resultError(c))
			}
			requests++
			pending--
			if !over {
				if err := prepare(c.Userdata); err != nil {
					return requests, err
				}
				pending++
			}
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return requests, fmt.Errorf("no completion within %v: the daemon hangs", waitLimit)
		}
		if err != nil {
			return requests, err
		}
		if !over {
			if err := w.ring.Submit(); err != nil {
				return requests, err
			}
		}
	}
	return requests, nil
}

func resultError(c usrbio.Completion) error {
	if err := c.Err(); err != nil {
		return err
	}
	return fmt.Errorf("only %d bytes moved", c.Result)
}
