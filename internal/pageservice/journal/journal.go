// Package journal keeps the log of a page index in one local file. Records are appended
// at one end; at the other end the journal drops what its owner no longer needs, so
// that the size of the file stays in proportion to the state that it describes.
//
// Append queues a write (queue.go). One goroutine, the committer, writes the queue to
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

	mu     sync.Mutex
	queue  []*write
	closed bool
	wake   chan struct{} // holds one token when queue or closed has changed
	done   chan struct{} // closed when the committer has ended

	// Only the committer uses what follows, and Start before there is one.
	next      uint64    // sequence number of the next record
	count     uint64    // of records; the bucket has it too, so that a lost leaf is noticed
	sizeBytes int64     // of all records
	paused    bool      // the last commit failed: the next one does not compact
	failed    time.Time // when a failure was last logged; zero if the last commit succeeded
	broken    error     // why nothing is written any more: the content of the disk is unknown
	stuck     bool      // bbolt gave up in the middle of a transaction and cannot be closed
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
		path: filepath.Join(dir, FileName), o: o, next: 1,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
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
	j.owner = owner
	unsynced, err := newDirs(j.path)
	if err != nil {
		return err
	}
	// The file is read before it is opened for writing, so that nothing is written to a
	// damaged one.
	if err := j.read(); err != nil {
		return err
	}
	if err := owner.Replayed(); err != nil {
		return corrupt(j.path, err)
	}
	if err := j.openToWrite(); err != nil {
		return err
	}
	if err := syncDirs(unsynced); err != nil {
		_ = j.db.Close()
		j.db = nil
		return err
	}
	go j.run() // until Close, which waits for it
	return nil
}

// openDB opens the file. Every commit writes the list of free pages, although bbolt
// could rebuild it here: it does so in a goroutine of its own, where a damaged file
// would end the process.
func openDB(path string, o Options, readOnly bool) (db *bolt.DB, err error) {
	err = guard(path, func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:      o.LockTimeout,
			ReadOnly:     readOnly,
			FreelistType: bolt.FreelistMapType,
			NoStatistics: true,
		})
		return err
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use by %s", path, holder(path))
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, corrupt(path, err)
	case errors.Is(err, pageservice.ErrCorrupt):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return db, nil
}

// openToWrite opens the file again, after it was read.
func (j *Journal) openToWrite() error {
	db, err := openDB(j.path, j.o, false)
	if err != nil {
		return err
	}
	err = guard(j.path, func() error {
		if err := makeBucket(db); err != nil {
			return err
		}
		last, err := lastRecord(db)
		if err == nil && last+1 != j.next {
			err = errors.New("another process has written to it meanwhile")
		}
		return err
	})
	if err != nil {
		_ = db.Close()
		return fmt.Errorf("%s: %w", j.path, err)
	}
	j.db = db
	return nil
}

// makeBucket makes the bucket of a new file. It does not write to a file that has the
// bucket, so that one on a full disk can be opened.
func makeBucket(db *bolt.DB) error {
	made := false
	if err := db.View(func(tx *bolt.Tx) error {
		made = tx.Bucket([]byte(bucket)) != nil
		return nil
	}); err != nil || made {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte(bucket))
		return err
	})
}

// Close implements pageservice.Log.
func (j *Journal) Close() error {
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.mu.Unlock()
	if j.db == nil {
		return nil // Start was not called, or failed
	}
	j.nudge()
	<-j.done
	if closed || j.stuck {
		return nil
	}
	return j.db.Close()
}

// Append implements pageservice.Log.
func (j *Journal) Append(done func(error), recs ...[]byte) (wait func(context.Context) error) {
	return j.enqueue(done, recs).wait
}
