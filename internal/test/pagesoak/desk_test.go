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

// batchPages is the most pages of one request, as of the clients' rings.
const batchPages = 8

// desk is one worker's way to the page files: rings, memory and registrations. It
// is set up anew when the daemon behind them is another one.
type desk struct {
	mountPoint string
	prefix     string // of the page files' names
	tally      *tally

	mount       *usrbio.Mount
	iov         *usrbio.Iov
	read, write *usrbio.Ring
	files       [ranks]*usrbio.File
}

func pageFile(mountPoint, prefix string, rank int) string {
	return filepath.Join(mountPoint, fmt.Sprintf("%s_%d", prefix, rank))
}

// makePageFiles makes one file for each rank, as the engines do at their start.
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

func (d *desk) open(ctx context.Context) (err error) {
	if d.mount, err = usrbio.Open(ctx, d.mountPoint); err != nil {
		return err
	}
	if d.iov, err = d.mount.NewIov(ctx, batchPages*pageBytes, usrbio.IovOptions{}); err != nil {
		return err
	}
	if d.read, err = d.mount.NewRing(ctx, usrbio.RingOptions{Entries: batchPages}); err != nil {
		return err
	}
	if d.write, err = d.mount.NewRing(ctx, usrbio.RingOptions{Entries: batchPages, Write: true}); err != nil {
		return err
	}
	for rank := range d.files {
		f, err := os.OpenFile(pageFile(d.mountPoint, d.prefix, rank), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		d.files[rank], err = d.mount.Register(ctx, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (d *desk) close() {
	if d.mount != nil {
		d.mount.Close(context.Background()) // fails for a daemon that is gone, and closes all the same
		d.mount = nil
	}
}

// gone tells whether an error is that of a daemon that was killed.
func gone(err error) bool {
	return errors.Is(err, usrbio.ErrDaemonGone) || errors.Is(err, usrbio.ErrNotMounted) ||
		errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ENOENT) ||
		errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)
}

// setUpLimit bounds waiting for a mount.
const setUpLimit = 30 * time.Second

// ready sets the desk up, if it is not, and waits for a mount.
func (d *desk) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setUpLimit)
	defer cancel()
	for d.mount == nil {
		err := d.open(ctx)
		if err == nil {
			d.tally.registered.Add(1)
			return nil
		}
		d.close()
		if !gone(err) {
			return err
		}
		if !pause(ctx, 50*time.Millisecond) { // nobody tells when a mount works
			return fmt.Errorf("no mount: %w", err)
		}
	}
	return nil
}

// transferLimit bounds a ring's work. The daemon answers in 5 s.
const transferLimit = 15 * time.Second

// transfer moves pages of a rank through a ring, page i from or to place i of the
// iov, at a desk that is ready. errGone says that the daemon went: nothing is known.
func (d *desk) transfer(ctx context.Context, writing bool, rank int, pages []int64) error {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	ring := d.read
	if writing {
		ring = d.write
	}
	requests := make([]usrbio.Request, len(pages))
	for i, page := range pages {
		requests[i] = usrbio.Request{File: d.files[rank], FileOffset: page * pageBytes, Iov: d.iov, IovOffset: int64(i) * pageBytes, Bytes: pageBytes}
	}
	err := ring.Do(ctx, requests)
	if err == nil {
		for _, r := range requests {
			if r.Result != pageBytes {
				err = errors.Join(err, fmt.Errorf("page at %d: %d of %d bytes: %w", r.FileOffset, r.Result, pageBytes, r.Err()))
			}
		}
	}
	if err != nil {
		d.close() // its memory may still be moved into
		if gone(err) {
			return errGone
		}
	}
	return err
}

var errGone = errors.New("the daemon went")

// place is the iov's memory of one page.
func (d *desk) place(i int) []byte { return d.iov.Bytes()[i*pageBytes : (i+1)*pageBytes] }
