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

// Reader reads the files of other hosts' Check. It keeps the last one open between questions, for keepOpen at most. Its methods may be called
// concurrently.
type Reader struct {
	Mover blockio.Mover
	Path  func(host string) string // of a host's file

	busy chan struct{} // holds one value while a question is answered
	once sync.Once

	mu     sync.Mutex
	host   string
	file   *file
	timer  *time.Timer
	closed bool
}

// keepOpen is longer than all rounds of a check take.
const keepOpen = 2 * time.Minute

// errBusy says that another question is being answered, which may hang.
var errBusy = errors.New("another host's question is being answered; ask again later")

// Read answers a question of a host. It returns when ctx ends, even if the file system hangs; until that answers, other questions are refused.
func (r *Reader) Read(ctx context.Context, host string, q Asked) (Read, error) {
	r.once.Do(func() { r.busy = make(chan struct{}, 1) })
	select {
	case r.busy <- struct{}{}:
	default:
		return Read{}, errBusy
	}
	return await(ctx, func() (Read, error) {
		defer func() { <-r.busy }()
		return r.read(host, q)
	})
}

func (r *Reader) read(host string, q Asked) (Read, error) {
	f := r.take(host)
	if f == nil || q.Round == 0 {
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
	if r.host != host {
		return nil
	}
	f := r.file
	r.file = nil
	return f
}

func (r *Reader) keep(host string, f *file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked()
	if r.closed {
		f.closeLater()
		return
	}
	r.host, r.file = host, f
	r.timer = time.AfterFunc(keepOpen, r.drop)
}

// Close has the reader keep nothing open any more.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.dropLocked()
}

func (r *Reader) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked()
}

func (r *Reader) dropLocked() {
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.file != nil {
		r.file.closeLater()
		r.file = nil
	}
}
