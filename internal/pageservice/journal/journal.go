// Package journal is a durable log in one file. Records are appended at one end; at
// the other end the log drops what its owner no longer needs, so that it stays about
// as long as what it says.
//
// The file is a bbolt database: one bucket, in which the sequence number of a record
// is its key. Of the well-kept stores written in Go, bbolt is the one that returns
// the error of a full disk and goes on when there is room again; pebble ends the
// process when a commit fails.
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// ErrClosed is the outcome of a write that was begun after Close.
var ErrClosed = errors.New("the log is closed")

// ErrCorrupt is wrapped by Open when the file is not what was written.
var ErrCorrupt = errors.New("the log is damaged")

// Options of a journal. Only Keep and Live are needed, and only once records are
// written.
type Options struct {
	// Keep says what of the oldest record is still needed, as new records to be
	// written at the young end. It is called by the committer, after the outcome of
	// all earlier writes was told and before any later one is written; rec is valid
	// during the call only. The records it returns become the journal's.
	Keep func(rec []byte) [][]byte

	// Live is about how many bytes a log without waste would have.
	Live func() int64

	// SlackBytes is the waste that is not worth the work of taking it away; 4 MiB.
	SlackBytes int64

	// Commit wraps the commit of a transaction; tests fail it, or look at the file
	// before and after.
	Commit func(commit func() error) error

	// LockTimeout is how long Open waits for another process; 1 s.
	LockTimeout time.Duration

	Logger *slog.Logger
}

// Journal is an open log. All methods may be called at once.
type Journal struct {
	path string
	db   *bolt.DB
	o    Options

	mu     sync.Mutex
	queue  []*Write
	closed bool
	wake   chan struct{} // holds one token when queue or closed changed
	done   chan struct{} // closed when the committer has ended

	// The committer's own.
	next      uint64    // sequence number of the next record
	count     uint64    // of records; the bucket says it too, so that a lost leaf is noticed
	sizeBytes int64     // of all records
	rested    bool      // the last commit failed: the next does not compact
	failed    time.Time // when a failure was logged last; zero: the last commit succeeded
	broken    error     // it is not known what the disk has; nothing is written any more
	stuck     bool      // bbolt gave up in the middle of a transaction and cannot be closed
}

// records is the bucket's name.
const records = "records"

// Open opens or makes the log at path, and calls each for every record in it, oldest
// first; rec is valid during the call only. An error of each is reported as damage of
// the file: records are written by one program and read by the same. Only one process
// has the log at a time.
func Open(path string, o Options, each func(rec []byte) error) (*Journal, error) {
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
	j := &Journal{path: path, o: o, next: 1, wake: make(chan struct{}, 1), done: make(chan struct{})}
	// It is read before it is opened to be written to, so that nothing is written to a
	// damaged file.
	if err := j.read(each); err != nil {
		return nil, err
	}
	if err := guard(path, j.openToWrite); err != nil {
		return nil, err
	}
	go j.run()
	return j, nil
}

// openDB opens the file. Its free pages are written with every commit, although they
// could be found again here: bbolt looks for them in a goroutine of its own, where
// damage ends the process.
func openDB(path string, o Options, readOnly bool) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout:      o.LockTimeout,
		ReadOnly:     readOnly,
		FreelistType: bolt.FreelistMapType,
		NoStatistics: true,
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use by %s", path, holder(path))
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, corrupt(path, err)
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
	j.db = db
	if err = j.makeBucket(); err == nil {
		var last uint64
		if last, err = j.last(); err == nil && last+1 != j.next {
			err = errors.New("another process has written to it meanwhile")
		}
	}
	if err != nil {
		_ = db.Close()
		return fmt.Errorf("%s: %w", j.path, err)
	}
	return nil
}

// makeBucket makes the bucket of a new file. An old one is not written to: it can be
// read on a full disk.
func (j *Journal) makeBucket() error {
	made := false
	if err := j.db.View(func(tx *bolt.Tx) error {
		made = tx.Bucket([]byte(records)) != nil
		return nil
	}); err != nil || made {
		return err
	}
	return j.db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte(records))
		return err
	})
}

// Close writes what was begun, then closes the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.mu.Unlock()
	j.nudge()
	<-j.done
	if closed || j.stuck {
		return nil
	}
	return j.db.Close()
}
