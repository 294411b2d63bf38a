// Package pages stores blocks in one big preallocated file whose pages a page service
// hands out. The service knows and records which page holds which block, so many processes
// can use one file, and none has to read it to know what is in it.
//
// Of the two protocols of docs/pages.md the store uses SGLang's. There a key belongs to one
// rank and is present when that rank has confirmed it; a reservation reports which keys are
// present already; and a key can be deleted, as is done with damaged blocks. In vLLM's
// protocol a key is present when every rank has confirmed it, a reservation is all or
// nothing, and nothing can be deleted. Keys uses the routes of the command line.
//
// The service's names keep apart what must not be mixed. /ns/NAME is made of the
// fingerprint and the layout, so two models share no keys. The pool, which the protocol
// calls namespace, is the file's own number, so no page number is ever used on another
// file. Behind each block, its page has a record (package blockhead) of what it is. The
// record decides whether a page that was read is the block; the service only says where
// to look.
package pages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// Options of Open.
type Options struct {
	// URL is the page service's: http://HOST:PORT, with a token as
	// http://kv3fs:TOKEN@HOST:PORT, or unix:PATH. It must know names below /ns, as
	// kv3fs's does where its address is bound to none.
	URL string

	// File is the page file. If it is missing or empty, it is created, CapacityBytes
	// long. All processes that use it must use one service.
	File string

	Layout    kv.Layout
	Namespace kv.Fingerprint

	// Rank tells the files of an engine's ranks apart. Default 0.
	Rank int

	// CapacityBytes is the size of a file that is created; a rest below a whole page is
	// not used. 0: the size of the existing file.
	CapacityBytes int64

	// DirectIO moves data past the page cache if that is possible.
	DirectIO bool

	// Streams is how many moves are under way at once, and how many goroutines check
	// what a batch has read; 32.
	Streams int

	// WaitingQueueDepth is how many batches of Load are accepted before it waits, and how
	// many of Save; 1024.
	WaitingQueueDepth int

	// Timeout bounds every wait: for admission; for the service and for other writers of
	// the same blocks (for a batch, all of these together); for a move; 30 s. It must be
	// below Reserve.
	Timeout time.Duration

	// Lease, Reserve and Quarantine are the service's --pages-lease (30 s),
	// --pages-reserve (60 s) and --pages-quarantine (10 s). A block whose last shard is
	// not saved within Reserve after its first is dropped. If the values here are larger
	// than the service's, writes are wasted.
	Lease, Reserve, Quarantine time.Duration

	// Checksums: the records always have them, so auto and require are the same.
	Checksums kv.Checksums

	// Engine moves the data; nil: system calls do. Close closes it. If Open fails, it
	// remains the caller's.
	Engine transfer.Engine
}

// check fills in the defaults and returns what is wrong with the options.
func (o *Options) check() error {
	if o.Streams <= 0 {
		o.Streams = 32
	}
	if o.WaitingQueueDepth <= 0 {
		o.WaitingQueueDepth = 1024
	}
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&o.Timeout, 30 * time.Second}, {&o.Lease, 30 * time.Second}, {&o.Reserve, 60 * time.Second}, {&o.Quarantine, 10 * time.Second}} {
		if *d.of <= 0 {
			*d.of = d.def
		}
	}
	switch {
	case o.Rank < 0:
		return fmt.Errorf("kvstore: pages: rank %d; ranks begin at 0", o.Rank)
	case o.File == "":
		return errors.New("kvstore: pages: no page file is named; name one")
	case o.Timeout >= o.Reserve:
		return fmt.Errorf("kvstore: pages: a timeout of %v leaves no time to write in a reservation of %v; lower timeout_ms, or raise --pages-reserve and this option with it", o.Timeout, o.Reserve)
	}
	switch o.Checksums {
	case "", kv.ChecksumsAuto, kv.ChecksumsRequire, kv.ChecksumsOff:
	default:
		return fmt.Errorf("kvstore: pages: checksums %q; auto, require and off are possible", o.Checksums)
	}
	if _, _, err := address(o.URL); err != nil {
		return err
	}
	return o.Layout.Check()
}

// Store is a kv.Store over a page service and a page file.
type Store struct {
	o       Options
	label   label
	service *service
	engine  transfer.Engine
	file    *pageFile

	counters kv.Counters
	heads    sync.Pool       // of *record
	group    *batch.Group    // what is under way
	limits   [2]*batch.Limit // by batch.Method: loads do not wait until saves have ended

	blocks     *assembly.Table[*page]
	unreadable unreadable
	confirmer  confirmer

	mu           sync.Mutex
	unfinished   map[kv.Key]*page
	reservations map[kv.Key]*reservation
	lastSwept    time.Time

	once     sync.Once
	closeErr error
}

var (
	_ kv.Store     = (*Store)(nil)
	_ kv.Registrar = (*Store)(nil)
)

// Open opens the file and registers it with the service, for which it waits no longer than
// the timeout.
func Open(o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	f, l, err := openFile(&o)
	if err != nil {
		return nil, err
	}
	service, err := newService(&o, l)
	if err != nil {
		f.Close()
		return nil, err
	}
	s := &Store{
		o: o, label: l, service: service, engine: o.Engine,
		blocks: assembly.New[*page](o.Layout.Shards(), sumOf),
		limits: [2]*batch.Limit{
			batch.Load: batch.LimitBatches(o.WaitingQueueDepth),
			batch.Save: batch.LimitBatches(o.WaitingQueueDepth),
		},
		unfinished:   map[kv.Key]*page{},
		reservations: map[kv.Key]*reservation{},
	}
	s.heads.New = func() any { return newRecord() }
	s.group = batch.NewGroup(o.Layout, &s.counters, o.Timeout)
	s.confirmer.store, s.confirmer.every = s, confirmEvery
	if s.engine == nil {
		s.engine = posix.New(posix.Options{Streams: o.Streams, Timeout: o.Timeout, DirectIO: o.DirectIO})
	}
	if err := s.open(f); err != nil {
		s.group.Close()
		service.close()
		if o.Engine == nil {
			err = errors.Join(err, s.engine.Close())
		}
		return nil, err
	}
	return s, nil
}

func (s *Store) open(f *os.File) error {
	file, err := s.adopt(f)
	if err != nil {
		return err
	}
	ctx, done := s.inTime(context.Background())
	defer done()
	if err := s.service.initialize(ctx); err != nil {
		return errors.Join(err, file.Close())
	}
	s.file = newPageFile(file, func() (transfer.File, error) {
		f, err := openAgain(&s.o, s.label)
		if err != nil {
			return nil, err
		}
		return s.adopt(f)
	}, s.o.Timeout)
	return nil
}

// adopt gives an open file to the engine.
func (s *Store) adopt(f *os.File) (transfer.File, error) {
	file, err := s.engine.Open(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return file, nil
}

// Layout implements kv.Store.
func (s *Store) Layout() kv.Layout { return s.o.Layout }

// Register registers memory with the engine.
func (s *Store) Register(name string, mem []byte) error { return s.engine.Register(name, mem) }

// Prefetch does nothing: there is no memory here to fetch blocks into.
func (s *Store) Prefetch([]kv.Key) {}

// Stats implements kv.Store. Only the service knows how many blocks there are and how many
// it has evicted.
func (s *Store) Stats() kv.Stats {
	stats := s.counters.Stats("Pages")
	stats.CapacityBytes = s.label.pages * s.label.strideBytes
	return stats
}

// Flush has nothing to wait for: the last shard of a block is settled when the service has
// confirmed the block, durably.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.group.Err(); err != nil {
		return err
	}
	return ctx.Err()
}

// Close implements kv.Store. Blocks that are unfinished then are dropped.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.group.Close()
		s.sweep(0)
		s.service.close()
		s.closeErr = errors.Join(s.file.close(), s.engine.Close())
	})
	return s.closeErr
}
