// Package visibility finds out whether another host reads what this one has just written. Two clients of the file system are the only proof of
// that: a writer overwrites a file in place, as a ring does, and a reader of another host, which keeps the file open as an engine does, says what
// it reads.
package visibility

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/shm"
)

const (
	// What is aligned goes past page caches, and the rest does not, and is always synced. So no round has both: GlusterFS sends what it
	// holds back of the first with the second.
	wholeBytes = 64 << 10
	partOff    = wholeBytes + 1000
	partBytes  = 5000
	fileBytes  = partOff + partBytes
	// windowBytes is what is read: more than the file has, and whole blocks.
	windowBytes = 128 << 10

	// rounds is how often the file is overwritten. GlusterFS holds some writes back and others not.
	rounds      = 24
	foundWithin = 20 * time.Second
	again       = 50 * time.Millisecond
)

// Asked is a question to the reader. Round 0 has it open the file anew.
type Asked struct {
	Round int `json:"round"`
}

// Read is the reader's answer.
type Read struct {
	Digest string `json:"digest"` // of all that it has read; "" while it does not find the file
}

// Check is a check of what another host reads.
type Check struct {
	Path  string // of a file, which is made
	Mover blockio.Mover
	// Ask has the other host say what it reads.
	Ask func(context.Context, Asked) (Read, error)
	// Found is how long the other host may not know the file, or what a file of that name was before. 0: 20 s.
	Found time.Duration
}

// Run overwrites the file some times, and has the other host asked after each. It reports whether that host has read at once, each time, what was
// written; the first answer that is another one is proof of the contrary. The errors are the file system's, Ask's, or the context's; nothing is known
// then. A call that hangs is left behind when ctx ends.
func (c Check) Run(ctx context.Context) (atOnce bool, err error) {
	w, err := await(ctx, func() (*file, error) { return open(c.Path, os.O_RDWR|os.O_CREATE|os.O_TRUNC) })
	if err != nil {
		return false, err
	}
	defer w.closeLater()
	for round := range rounds {
		want, err := await(ctx, func() (string, error) { return w.overwrite(c.Mover, parts(round)) })
		if err != nil {
			return false, err
		}
		if round == 0 {
			atOnce, err = c.found(ctx, want)
		} else {
			var got Read
			got, err = c.Ask(ctx, Asked{Round: round})
			atOnce = got.Digest == want
		}
		if err != nil || !atOnce {
			return false, err
		}
	}
	return true, nil
}

// found has the other host look for the file until it reads what was written first, and reports whether it does.
func (c Check) found(ctx context.Context, want string) (bool, error) {
	bound := cmp.Or(c.Found, foundWithin)
	for began := time.Now(); ; {
		got, err := c.Ask(ctx, Asked{})
		switch {
		case err != nil || got.Digest == want:
			return err == nil, err
		case time.Since(began) <= bound:
		case got.Digest == "":
			return false, fmt.Errorf("%s is not there for the other host after %v", c.Path, bound)
		default:
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(again):
		}
	}
}

// file is an open file, as the tree would lend it.
type file struct {
	mu               sync.Mutex // held while one of its calls is under way
	buffered, direct int        // direct is -1 where there is no direct I/O
	memory           []byte
	content          []byte // what was written
	closed           bool
}

// part is what one write stores.
type part struct{ off, n int64 }

// parts returns what is written in a round.
func parts(round int) []part {
	aligned, rest := part{0, wholeBytes}, []part{{wholeBytes, partOff - wholeBytes}, {partOff, partBytes}}
	switch {
	case round == 0:
		return append(rest, aligned)
	case round%8 == 0:
		return rest
	case round%2 == 0:
		return []part{aligned}
	}
	return []part{{int64(round) % (wholeBytes / blockio.SectorBytes) * blockio.SectorBytes, blockio.SectorBytes}}
}

func open(path string, flags int) (*file, error) {
	f := &file{direct: -1}
	var err error
	if f.buffered, err = unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(f.buffered, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is no regular file")
	}
	if err == nil {
		f.memory, err = unix.Mmap(-1, 0, windowBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // direct I/O wants whole pages
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Join(err, unix.Close(f.buffered))}
	}
	if fd, err := unix.Open(path, flags&os.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		f.direct = fd
	}
	return f, nil
}

// closeLater closes the file once no call uses it. Where the file system hangs that may be never, so nobody waits for it.
func (f *file) closeLater() {
	go func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.closed = true
		_ = unix.Close(f.buffered)
		if f.direct >= 0 {
			_ = unix.Close(f.direct)
		}
		_ = unix.Munmap(f.memory)
	}()
}

func (f *file) FD() int               { return f.buffered }
func (f *file) DirectFD() (int, bool) { return f.direct, f.direct >= 0 }
func (f *file) OnDataDevice() bool    { return true }
func (f *file) Confine(int64) bool    { return false }

// overwrite writes new bytes, as rings do, and returns their digest.
func (f *file) overwrite(m blockio.Mover, parts []part) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed { // by a Check that did not wait for this call
		return "", os.ErrClosed
	}
	if f.content == nil {
		f.content = make([]byte, fileBytes)
	}
	for _, p := range parts {
		_, _ = rand.Read(f.content[p.off : p.off+p.n]) // never fails
		copy(f.memory, f.content[p.off:p.off+p.n])
		if _, _, err := m.Write(f, shm.OwnWindow(f.memory[:p.n]), 0, p.off); err != nil {
			return "", fmt.Errorf("write: %w", err)
		}
	}
	return digest(f.content), nil
}

// read reads all of the file, as rings do, and returns the digest.
func (f *file) read(m blockio.Mover) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return "", os.ErrClosed
	}
	n, _, err := m.Read(f, shm.OwnWindow(f.memory), 0, 0)
	if err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return digest(f.memory[:n]), nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// await returns what call does, or the context's error if that ends first. The call then goes on by itself; what it returns is closed.
func await[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result)
	go func() {
		value, err := call()
		select {
		case done <- result{value, err}:
		case <-ctx.Done():
			if f, ok := any(value).(*file); ok && f != nil {
				f.closeLater()
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
