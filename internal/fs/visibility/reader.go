package visibility

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
)

// Reader reads the files of other hosts' checks. Of each host it keeps the last one open between questions, for keepOpen at most: a file that is
// opened anew may be read anew where one that is open is not. Its methods may be called concurrently.
type Reader struct {
	Mover blockio.Mover
	Path  func(host string) string // of a host's file

	once sync.Once
	busy chan struct{} // holds one value while a question is answered

	mu     sync.Mutex
	kept   map[string]kept // by host
	closed bool
}

type kept struct {
	file  *file
	since time.Time
}

const (
	// keepOpen is longer than a check takes.
	keepOpen = 2 * time.Minute
	// mostKept bounds the files that are open.
	mostKept = 16
)

// ErrBeginAnew says that the file of a host that goes on asking is not open any more.
var ErrBeginAnew = errors.New("the file is not open here any more: begin anew")

// Read answers a question of a host, one after the other. It returns when ctx ends, even if the file system hangs.
func (r *Reader) Read(ctx context.Context, host string, q Asked) (Read, error) {
	r.once.Do(func() { r.busy = make(chan struct{}, 1) })
	select {
	case r.busy <- struct{}{}:
	case <-ctx.Done():
		return Read{}, ctx.Err()
	}
	return await(ctx, func() (Read, error) {
		defer func() { <-r.busy }()
		return r.read(host, q)
	})
}

func (r *Reader) read(host string, q Asked) (Read, error) {
	f := r.take(host)
	switch {
	case q.Round != 0 && f == nil:
		return Read{}, ErrBeginAnew
	case q.Round == 0:
		if f != nil {
			f.closeLater()
		}
		var err error
		if f, err = open(r.Path(host), os.O_RDONLY); errors.Is(err, fs.ErrNotExist) {
			return Read{}, nil
		} else if err != nil {
			return Read{}, err
		}
	}
	sum, err := f.read(r.Mover)
	if err != nil {
		f.closeLater()
		return Read{}, err
	}
	r.keep(host, f)
	return Read{Digest: sum}, nil
}

// take returns the open file of a host, which is the caller's then, or nil.
func (r *Reader) take(host string) *file {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.kept[host].file
	delete(r.kept, host)
	return f
}

// keep keeps a file, and closes those that are not needed any more.
func (r *Reader) keep(host string, f *file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		r.kept = map[string]kept{}
	}
	r.kept[host] = kept{f, time.Now()}
	time.AfterFunc(keepOpen, r.tidy)
	for len(r.kept) > mostKept || r.closed && len(r.kept) > 0 {
		oldest := host
		for name, k := range r.kept {
			if k.since.Before(r.kept[oldest].since) {
				oldest = name
			}
		}
		r.drop(oldest)
	}
}

// tidy closes what was not asked for in keepOpen.
func (r *Reader) tidy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, k := range r.kept {
		if time.Since(k.since) >= keepOpen {
			r.drop(name)
		}
	}
}

func (r *Reader) drop(host string) {
	r.kept[host].file.closeLater()
	delete(r.kept, host)
}

// Close has the reader keep nothing open any more.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for name := range r.kept {
		r.drop(name)
	}
}
