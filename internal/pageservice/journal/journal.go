// Package journal keeps the log of a page index in one local file. Records are appended
// at one end; at the other end the journal drops what its owner no longer needs, so
// that the size of the file stays in proportion to the state that it describes.
//
// Append queues a write (package queue). One goroutine, the committer, writes the queue to
// the disk (commit.go) and compacts the file (compact.go).
//
// The file is a bbolt database: one bucket, in which the sequence number of a record
// is its key. Of the well-maintained stores written in Go, bbolt is the one that
// returns the error of a full disk and continues when there is space again; pebble
// ends the process when a commit fails.
package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/queue"
)

// FileName is the name of a journal's file in its directory.
const FileName = "pages.db"

// Options are the options of a journal. The zero value selects the defaults.
type Options struct {
	// SlackBytes is how much longer than twice LogOwner.LiveBytes the file may grow
	// before compaction begins; 4 MiB.
	SlackBytes int64

	// Commit wraps the commit of a transaction. Tests make it fail, or look at the file
	// before and after.
	Commit func(commit func() error) error

	// NoSync leaves it to the kernel when a commit reaches the disk: for tests that do not
	// cut the power.
	NoSync bool

	// LockTimeout is how long Start waits for another process to release the file; 1 s.
	LockTimeout time.Duration

	Logger *slog.Logger
}

// Journal is a pageservice.Log in a file.
type Journal struct {
	path  string
	o     Options
	owner pageservice.LogOwner
	db    *bolt.DB // nil before Start has succeeded

	starting sync.Mutex // held by Start

	queue *queue.Queue
	done  chan struct{} // closed when the committer has ended

	// Only the committer uses what follows, and Start before there is one.
	tally            // of the records in the file
	file   *os.File  // that db has open
	meta   meta      // as Start found it
	paused bool      // the last commit failed: the next one does not compact
	failed time.Time // when a failure was last logged; zero if the last commit succeeded
	broken error     // why nothing is written any more: the content of the disk is unknown
	stuck  bool      // bbolt gave up in the middle of a transaction and cannot be closed
}

var _ pageservice.Log = (*Journal)(nil)

// bucket is the name of the only bucket.
const bucket = "records"

// New returns the journal in dir. Start creates dir if it does not exist; nothing is
// touched before Start.
func New(dir string, o Options) *Journal {
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if o.SlackBytes == 0 {
		o.SlackBytes = 4 << 20
	}
	if o.Commit == nil {
		o.Commit = func(commit func() error) error { return commit() }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Journal{
		path: filepath.Join(dir, FileName), o: o, tally: tally{next: 1},
		queue: queue.New(), done: make(chan struct{}),
	}
}

// SizeBytes implements pageservice.Log.
func (j *Journal) SizeBytes() int64 {
	info, err := os.Stat(j.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Start implements pageservice.Log.
func (j *Journal) Start(owner pageservice.LogOwner) error {
	j.starting.Lock()
	defer j.starting.Unlock()
	if j.queue.Closed() {
		return pageservice.ErrClosed
	}
	if err := j.start(owner); err != nil {
		return err
	}
	go j.run()            // until Close, which waits for it
	if j.queue.Closed() { // meanwhile; Close waits for this
		return pageservice.ErrClosed
	}
	return nil
}

func (j *Journal) start(owner pageservice.LogOwner) error {
	j.owner = owner
	unsynced, err := newDirs(j.path)
	if err != nil {
		return err
	}
	f, fresh, err := openFile(j.path, j.o.LockTimeout)
	if err != nil {
		return err
	}
	if fresh {
		if err := checkUnused(j.path); err != nil {
			return errors.Join(err, os.Remove(unfinished(j.path)), f.Close())
		}
	}
	// The file is read before bbolt opens it, so that nothing is written to a damaged one.
	if !fresh {
		err = j.read(f)
	}
	if err == nil {
		if err = owner.Replayed(); err != nil {
			err = corrupt(j.path, err)
		}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if fresh {
		err = j.make(f)
	} else {
		err = j.openToWrite(f)
	}
	if err == nil {
		err = syncDirs(unsynced)
	}
	if err != nil {
		if j.db != nil {
			_ = j.db.Close()
			j.db = nil
		}
		return err
	}
	j.remember()
	return nil
}

// openDB has bbolt open a file, which belongs to it from then on, also after an error.
// Every commit writes the list of free pages, although bbolt could rebuild it here: it
// does so in a goroutine of its own, where a damaged file would end the process.
func (j *Journal) openDB(f *os.File) error {
	j.file = f
	err := guard(j.path, func() (err error) {
		j.db, err = bolt.Open(f.Name(), 0o600, &bolt.Options{
			OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return f, nil },
			Timeout:      j.o.LockTimeout,
			FreelistType: bolt.FreelistMapType,
			NoStatistics: true,
			NoSync:       j.o.NoSync,
		})
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		err = corrupt(j.path, err)
	case !errors.Is(err, pageservice.ErrCorrupt):
		err = fmt.Errorf("%s: %w", j.path, err)
	}
	j.db = nil
	_ = f.Close() // bbolt has closed it, unless it panicked
	return err
}

// make makes a file of its own in f, without records, and gives it its name.
func (j *Journal) make(f *os.File) error {
	err := f.Truncate(0) // another process may have ended while it was making it
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if err = j.openDB(f); err == nil {
		j.meta.pageBytes = int64(j.db.Info().PageSize)
		err = makeBucket(j.db, &j.tally)
	}
	if err == nil {
		err = os.Rename(unfinished(j.path), j.path)
	}
	if err != nil {
		_ = os.Remove(unfinished(j.path))
	}
	return err
}

func makeBucket(db *bolt.DB, t *tally) error {
	return db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte(bucket))
		if err != nil {
			return err
		}
		return b.SetSequence(t.seal(uint64(tx.ID())))
	})
}

// openToWrite has bbolt open the file, after it was read.
func (j *Journal) openToWrite(f *os.File) error {
	if err := j.openDB(f); err != nil {
		return err
	}
	return guard(j.path, func() error {
		return j.db.View(func(tx *bolt.Tx) error {
			if got := uint64(tx.ID()); got != j.meta.txid {
				return corrupt(j.path, fmt.Sprintf("bbolt reads transaction %d, and the newest is %d", got, j.meta.txid))
			}
			return nil
		})
	})
}

// Close implements pageservice.Log.
func (j *Journal) Close() error {
	closed := j.queue.Close()
	j.starting.Lock()
	defer j.starting.Unlock()
	if j.db == nil {
		return nil // Start was not called, or failed
	}
	<-j.done
	if closed || j.stuck {
		return nil
	}
	return j.db.Close()
}

// Append implements pageservice.Log.
func (j *Journal) Append(done func(error), recs ...[]byte) (wait func(context.Context) error) {
	return j.queue.Append(done, recs)
}
