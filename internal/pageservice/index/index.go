// Package index records which page of which file holds which key, for all engines that
// share the files: in memory, with a log of all changes.
//
// A change is planned under the lock of its space, where it marks what it touches as
// busy. Then it is written without the lock. Then it is applied, or undone, under the
// lock again, in the order in which changes were written. So the index always equals
// what a restart would find, apart from what needs no record, and only callers that
// change something wait for the disk.
//
// Reserve (reserve.go) gets pages from the free list or evicts keys: evict.go chooses the
// victims, in the order that order.go keeps.
package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Options are the options of Open. The zero value selects the defaults.
type Options struct {
	pageservice.Options

	// Handover is how long another host may still answer queries after this one has taken the
	// lead of the log; 0 if no other can lead it. What that host may have told clients is
	// protected for so much longer.
	Handover time.Duration

	// Promised is the most that any host has promised that has led the log before. It is kept, too.
	Promised pageservice.Promises

	Logger *slog.Logger

	// Now is the clock; time.Now. Only differences count.
	Now func() time.Time

	searchBound int // see the constant
}

// Limits of one call.
const (
	maxKeyBytes = 4 << 10
	maxRank     = 1<<20 - 1
)

// Index is the state that all engines on the same files agree on.
//
// All methods may be called at once, from any goroutine; each is atomic, and its results
// are in the order of its arguments. Strings and slices that are passed in remain the
// caller's: the index copies what it keeps. A method that returns an error other than
// ErrUnknownRank has changed nothing that a client could notice; but if the context
// ends while the disk is at work, the change may still be made.
//
// What holds at all times, across kill -9 and power loss:
//   - no page of a rank has two owners;
//   - a page whose location was given out goes to no writer before the lease, and then
//     the quarantine, have ended;
//   - a page that its writer gave up (released, expired, deleted) goes to no other before
//     the quarantine has ended, and then the time of Options.LateWrites if it was not confirmed;
//   - a key whose confirmation was acknowledged is found until it is evicted, deleted,
//     cleared, or its rank comes back with another number of pages;
//   - a key is visible only while every rank of its space has confirmed it.
type Index struct {
	o         Options
	log       pageservice.Log
	start     time.Time    // when the log was read
	forgets   bool         // the log did not fit into memory; see trim
	liveBytes atomic.Int64 // about the length of a log without waste
	reading   record       // the record that is being replayed
	read      int64        // how many keys were replayed
	missing   string       // why the newest records may be missing; see forgetAll

	closed      atomic.Bool
	used        atomic.Int64 // see countMemory
	frames      atomic.Int64 // bytes of spaces and ranks without their keys
	nextReopen  atomic.Int64 // see reopen
	nextReclaim atomic.Int64 // see mayReclaim
	warned      atomic.Int64 // see warnFull

	mu       sync.RWMutex
	spaces   map[pageservice.Space]*space
	accounts map[string]*account // by namespace
	expect   int                 // a guess at the number of keys of the next space that is made
}

// bytesPerKey is about what a key of 64 bytes takes in the log.
const bytesPerKey = 100

// Open starts the log and returns the index that it describes. The index owns the log
// from then on, also after an error.
func Open(log pageservice.Log, o Options) (*Index, error) {
	x := newIndex(log, o)
	x.expect = int(min(log.SizeBytes()/bytesPerKey, x.o.MemoryBytes/(4*confirmBytes)))
	err := x.replay()
	if err == nil {
		err = x.logForgotten()
	}
	if err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("page index: %w", err)
	}
	if !x.shared() {
		x.logTrimmed()
	}
	return x, nil
}

// newIndex returns an empty index.
func newIndex(log pageservice.Log, o Options) *Index {
	o.Options = o.Options.WithDefaults()
	if o.searchBound == 0 {
		o.searchBound = searchBound
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Index{o: o, log: log, start: o.Now(), spaces: map[pageservice.Space]*space{}, accounts: map[string]*account{}}
}

// Close closes the index and its log; the state is kept. Later calls return ErrClosed.
func (x *Index) Close() error {
	x.closed.Store(true)
	return x.log.Close()
}

// Times are nanoseconds since the log was read, because an int64 fits into atomics.
// None is logged: the clock may be set between two lives of the process, and hosts have
// clocks of their own.

func (x *Index) now() int64 { return int64(x.o.Now().Sub(x.start)) }

func (x *Index) lease() int64      { return int64(x.o.Lease) }
func (x *Index) reserve() int64    { return int64(x.o.Reserve) }
func (x *Index) quarantine() int64 { return int64(x.o.Quarantine) }

// lateWrites is how long a write may still reach a page after its writer gave it up.
func (x *Index) lateWrites() int64 { return int64(x.o.LateWrites) }

// shared reports whether other hosts follow the log.
func (x *Index) shared() bool { return x.o.Handover > 0 }

// find returns a space, or nil.
func (x *Index) find(s pageservice.Space) *space {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.spaces[s]
}

// findOrCreate returns a space, and creates it if there is none.
func (x *Index) findOrCreate(s pageservice.Space) *space {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.spaces[s] == nil {
		x.addSpace(s, x.expect)
		x.expect = 0
	}
	return x.spaces[s]
}

// addSpace adds a space without ranks. The caller holds mu.
func (x *Index) addSpace(name pageservice.Space, expect int) {
	s := newSpace(x, name, expect)
	if x.accounts[name.Namespace] == nil {
		x.accounts[name.Namespace] = &account{}
	}
	s.account = x.accounts[name.Namespace]
	s.account.spaces++
	x.spaces[name] = s
	x.frames.Add(spaceBytes)
	s.countMemory()
}

// dropSpace removes a space. The caller holds mu.
func (x *Index) dropSpace(s *space) {
	delete(x.spaces, s.name)
	x.frames.Add(-spaceBytes)
	s.setUsed(0)
	if s.account.spaces--; s.account.spaces == 0 {
		delete(x.accounts, s.name.Namespace)
	}
}

// all returns the spaces, sorted.
func (x *Index) all() []*space {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]*space, 0, len(x.spaces))
	for _, s := range x.spaces {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y *space) int {
		return cmp.Or(cmp.Compare(x.name.Namespace, y.name.Namespace), cmp.Compare(x.name.Set, y.name.Set))
	})
	return all
}

// room returns why nothing new may be logged now, if so.
func (x *Index) room() error {
	if l, ok := x.log.(pageservice.Limited); ok {
		return l.Room()
	}
	return nil
}

// usable returns the reason why a call cannot be served, if there is one.
func (x *Index) usable(ctx context.Context) error {
	if x.closed.Load() {
		return pageservice.ErrClosed
	}
	return ctx.Err()
}

// outcome classifies the error of a write.
func outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pageservice.ErrClosed):
		return pageservice.ErrClosed
	case ctx.Err() != nil && errors.Is(err, ctx.Err()), errors.Is(err, pageservice.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", pageservice.ErrUnavailable, err)
}
