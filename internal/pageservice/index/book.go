// Package index is a pageservice.Book in one process: an index in memory, and a log of
// all changes in one file.
//
// A change is planned under the lock of its space, where it marks what it touches as
// busy; then it is written without the lock; then it is applied, or undone, under the
// lock again, in the order in which changes were written. So the index is at all
// times what a restart would find, apart from things that need no record, and nobody
// waits for the disk but those who write to it.
package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// Options of Open. The zero value is good.
type Options struct {
	pageservice.Options

	// Policy is the order of eviction; LRU.
	Policy Policy

	Logger *slog.Logger

	// Now is the clock; time.Now. Only differences count.
	Now func() time.Time

	// LogSlackBytes is how much longer than twice what it says the log may be; see
	// journal.Options.
	LogSlackBytes int64

	// Commit wraps each write to the disk; tests make it fail, or crash.
	Commit func(commit func() error) error

	lookBound int // see there
}

// Limits of one call.
const (
	maxKeyBytes = 4 << 10
	maxRank     = 1<<20 - 1
)

// Book is a pageservice.Book.
type Book struct {
	o     Options
	log   *journal.Journal
	start time.Time
	live  atomic.Int64 // about the bytes of a log without waste

	closed atomic.Bool
	mu     sync.RWMutex
	spaces map[pageservice.Space]*space
	expect int // keys of the next space that is made, a guess
}

// bytesPerKey is about what a key of 64 bytes takes in the file.
const bytesPerKey = 100

var _ pageservice.Book = (*Book)(nil)

// FileName is the book's file in its directory.
const FileName = "pages.db"

// Open opens the book in dir, or makes an empty one. Only one process has it at a
// time.
func Open(dir string, o Options) (*Book, error) {
	o.Options = o.Options.WithDefaults()
	if o.Policy == nil {
		o.Policy = LRU{}
	}
	if o.lookBound == 0 {
		o.lookBound = lookBound
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.World < 0 || o.World > pageservice.MaxRanks {
		return nil, fmt.Errorf("page store: %w: %d ranks; 0 to %d", pageservice.ErrInvalid, o.World, pageservice.MaxRanks)
	}
	unsynced, err := newDirs(dir)
	if err != nil {
		return nil, err
	}
	b := &Book{o: o, start: o.Now(), spaces: map[pageservice.Space]*space{}}
	path := filepath.Join(dir, FileName)
	if info, err := os.Stat(path); err == nil {
		b.expect = int(info.Size() / bytesPerKey)
	}
	log, err := journal.Open(path, journal.Options{
		Keep:       b.keep,
		Live:       b.live.Load,
		SlackBytes: o.LogSlackBytes,
		Commit:     o.Commit,
		Logger:     o.Logger,
	}, b.replayer())
	if err != nil {
		return nil, fmt.Errorf("page store: %w", err)
	}
	b.log = log
	if err := syncDirs(unsynced); err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("page store: %w", err)
	}
	for _, s := range b.all() {
		if err := s.ready(); err != nil {
			_ = log.Close()
			return nil, fmt.Errorf("page store: %w: %s: space %q %q: %w",
				journal.ErrCorrupt, path, s.name.Namespace, s.name.Set, err)
		}
	}
	return b, nil
}

// Close ends the book.
func (b *Book) Close() error {
	b.closed.Store(true)
	return b.log.Close()
}

// Times are nanoseconds since the book was opened: int64 fits into atomics. None is
// written: a clock may have been set between two lives of the process.

func (b *Book) now() int64 { return int64(b.o.Now().Sub(b.start)) }

func (b *Book) lease() int64      { return int64(b.o.Lease) }
func (b *Book) reserve() int64    { return int64(b.o.Reserve) }
func (b *Book) quarantine() int64 { return int64(b.o.Quarantine) }

// find returns a space, or nil.
func (b *Book) find(s pageservice.Space) *space {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.spaces[s]
}

// make returns a space, new if need be.
func (b *Book) make(s pageservice.Space) *space {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spaces[s] == nil {
		b.spaces[s] = newSpace(b, s, b.expect)
		b.expect = 0
	}
	return b.spaces[s]
}

// all returns the spaces, sorted.
func (b *Book) all() []*space {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all := make([]*space, 0, len(b.spaces))
	for _, s := range b.spaces {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y *space) int {
		return cmp.Or(cmp.Compare(x.name.Namespace, y.name.Namespace), cmp.Compare(x.name.Set, y.name.Set))
	})
	return all
}

// usable tells why a call cannot be served, if so.
func (b *Book) usable(ctx context.Context) error {
	if b.closed.Load() {
		return pageservice.ErrClosed
	}
	return ctx.Err()
}

// outcome classifies the error of a write.
func outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, journal.ErrClosed):
		return pageservice.ErrClosed
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err
	}
	return fmt.Errorf("%w: %w", pageservice.ErrUnavailable, err)
}
