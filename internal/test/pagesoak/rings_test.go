package pagesoak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

// batchPages is the most pages of one request: the length of the rings.
const batchPages = 8

// rings are the rings, the memory and the registrations through which one worker uses the
// page files. They are set up again when the daemon was restarted.
type rings struct {
	mountPoint string
	prefix     string // of the names of the page files
	tally      *tally

	mount       *usrbio.Mount
	iov         *usrbio.Iov
	read, write *usrbio.Ring
	files       [ranks]*usrbio.File
}

func pageFile(mountPoint, prefix string, rank int) string {
	return filepath.Join(mountPoint, fmt.Sprintf("%s_%d", prefix, rank))
}

// makePageFiles makes one file for each rank, as engines do when they start.
func makePageFiles(mountPoint, prefix string, numPages int) error {
	for rank := range ranks {
		f, err := os.OpenFile(pageFile(mountPoint, prefix, rank), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(int64(numPages)*pageBytes), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (r *rings) open(ctx context.Context) (err error) {
	if r.mount, err = usrbio.Open(ctx, r.mountPoint); err != nil {
		return err
	}
	if r.iov, err = r.mount.NewIov(ctx, batchPages*pageBytes, usrbio.IovOptions{}); err != nil {
		return err
	}
	if r.read, err = r.mount.NewRing(ctx, usrbio.RingOptions{Entries: batchPages}); err != nil {
		return err
	}
	if r.write, err = r.mount.NewRing(ctx, usrbio.RingOptions{Entries: batchPages, Write: true}); err != nil {
		return err
	}
	for rank := range r.files {
		f, err := os.OpenFile(pageFile(r.mountPoint, r.prefix, rank), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		r.files[rank], err = r.mount.Register(ctx, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (r *rings) close() {
	if r.mount != nil {
		r.mount.Close(context.Background()) // fails if the daemon is gone, and still closes
		r.mount = nil
	}
}

// gone reports whether an error comes from a daemon that was killed.
func gone(err error) bool {
	return errors.Is(err, usrbio.ErrDaemonGone) || errors.Is(err, usrbio.ErrNotMounted) ||
		errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ENOENT) ||
		errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)
}

// setUpLimit bounds the wait for a mount.
const setUpLimit = 30 * time.Second

// ready sets up the rings, if they are not, and waits for a mount.
func (r *rings) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setUpLimit)
	defer cancel()
	for r.mount == nil {
		err := r.open(ctx)
		if err == nil {
			r.tally.registered.Add(1)
			return nil
		}
		r.close()
		if !gone(err) {
			return err
		}
		if !pause(ctx, 50*time.Millisecond) { // a mount that comes back raises no event
			return fmt.Errorf("no mount: %w", err)
		}
	}
	return nil
}

// transferLimit bounds a transfer. The daemon answers within 5 s.
const transferLimit = 15 * time.Second

// transfer moves pages of a rank through a ring, page i from or to place i of the iov.
// The rings must be ready. errGone means that the daemon was killed: the outcome is
// unknown.
func (r *rings) transfer(ctx context.Context, writing bool, rank int, pages []int64) error {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	ring := r.read
	if writing {
		ring = r.write
	}
	requests := make([]usrbio.Request, len(pages))
	for i, page := range pages {
		requests[i] = usrbio.Request{File: r.files[rank], FileOffset: page * pageBytes, Iov: r.iov, IovOffset: int64(i) * pageBytes, Bytes: pageBytes}
	}
	err := ring.Do(ctx, requests)
	if err == nil {
		for _, q := range requests {
			if q.Result != pageBytes {
				err = errors.Join(err, fmt.Errorf("page at %d: %d of %d bytes: %w", q.FileOffset, q.Result, pageBytes, q.Err()))
			}
		}
	}
	if err != nil {
		r.close() // transfers into its memory may still be under way
		if gone(err) {
			return errGone
		}
	}
	return err
}

var errGone = errors.New("the daemon was killed")

// place returns the memory of one page in the iov.
func (r *rings) place(i int) []byte { return r.iov.Bytes()[i*pageBytes : (i+1)*pageBytes] }
