// Package pages is a store in one big preallocated file, whose pages a page service
// gives out: which page holds which block is the service's to know and to keep, so
// that many processes may use one file, and none has to read it to know what is in
// it.
//
// Of the two protocols of docs/pages.md it speaks SGLang's: there a key belongs to one
// rank and is there when that rank has confirmed it, a reservation says which keys are
// there already, and a key can be deleted, which is what is done to a damaged one.
// In vLLM's a key is there when every rank has confirmed it, a reservation is all or
// nothing, and nothing can be deleted.
//
// The service's names keep apart what must not meet: /ns/NAME is made of the
// fingerprint and the layout, so that two models share no keys, and the pool, which
// the protocol calls namespace, is the file's own number, so that no page number is
// ever used on another file. Behind each block its page has a record (package
// blockhead) of what it is: the record decides whether a page that was read is the
// block, the service only where to look.
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
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Options of Open.
type Options struct {
	// URL is the page service's: http://HOST:PORT, with a token as
	// http://kv3fs:TOKEN@HOST:PORT, or unix:PATH. It must know names below /ns, as
	// kv3fs's does where its address is bound to none.
	URL string

	// File is the page file. It is made, CapacityBytes long, where it is missing or
	// empty. Everybody who uses it asks one service.
	File string

	Layout    kv.Layout
	Namespace kv.Fingerprint

	// Rank tells the files of an engine's ranks apart; 0.
	Rank int

	// CapacityBytes is the size of a file that is made; what is not a whole page is
	// left. 0: as long as the file that is there.
	CapacityBytes int64

	// DirectIO moves data past the page cache where that can be done.
	DirectIO bool

	// Streams is how many moves are under way at once, and how many goroutines check
	// what a batch has read; 32.
	Streams int

	// WaitingQueueDepth is how many batches are taken before Load and Dump wait; 1024.
	WaitingQueueDepth int

	// Timeout bounds every wait: for room in the queue, for the service and for others
	// who write the same blocks (of a batch, all that together), for a move; 30 s. It
	// must be below Reserve.
	Timeout time.Duration

	// Lease, Reserve and Quarantine are what the service has for --pages-lease (30 s),
	// --pages-reserve (60 s) and --pages-quarantine (10 s). A block whose last shard is
	// not dumped in Reserve after its first is dropped. Values above the service's own
	// cost data that is written in vain.
	Lease, Reserve, Quarantine time.Duration

	// Checksums: the records always have them, so that auto and require are the same.
	Checksums kv.Checksums

	// Engine moves the data; nil: by system calls. Close closes it; where Open fails it
	// remains the caller's.
	Engine transfer.Engine
}

// check fills in defaults and says what is wrong.
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
		return errors.New("kvstore: pages: no page file is named")
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
	heads    sync.Pool    // of *record
	group    *batch.Group // what is under way
	limit    *batch.Limit

	blocks    *assembly.Table[*page]
	confirmer confirmer

	mu         sync.Mutex
	unfinished map[kv.Key]*page
	bookings   map[kv.Key]*booking
	lastSwept  time.Time

	once     sync.Once
	closeErr error
}

var (
	_ kv.Store     = (*Store)(nil)
	_ kv.Registrar = (*Store)(nil)
)

// Open opens the file and makes it known to the service, for which it waits no longer
// than the timeout.
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
		limit:      batch.LimitBatches(o.WaitingQueueDepth),
		blocks:     assembly.New[*page](o.Layout.Shards()),
		unfinished: map[kv.Key]*page{},
		bookings:   map[kv.Key]*booking{},
	}
	s.heads.New = func() any { return newRecord() }
	s.group = batch.NewGroup(o.Layout, &s.counters, o.Timeout)
	s.confirmer.store = s
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

// adopt hands an open file to the engine.
func (s *Store) adopt(f *os.File) (transfer.File, error) {
	file, err := s.engine.Open(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return file, nil
}

// Layout is kv.Store's.
func (s *Store) Layout() kv.Layout { return s.o.Layout }

// Register makes memory known to what moves the data.
func (s *Store) Register(name string, mem []byte) error { return s.engine.Register(name, mem) }

// Prefetch does nothing: the file is as near as this store can bring a block.
func (s *Store) Prefetch([]kv.Key) {}

// Stats is kv.Store's. How many blocks there are only the service knows, and which it
// has evicted.
func (s *Store) Stats() kv.Stats {
	stats := s.counters.Stats("Pages")
	stats.CapacityBytes = s.label.pages * s.label.strideBytes
	return stats
}

// Flush has nothing to wait for: a dump is settled when the service has confirmed its
// block, durably.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.group.Err(); err != nil {
		return err
	}
	return ctx.Err()
}

// Close is kv.Store's. What is unfinished then is dropped.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.group.Close()
		s.sweep(0)
		s.service.close()
		s.closeErr = errors.Join(s.file.close(), s.engine.Close())
	})
	return s.closeErr
}
