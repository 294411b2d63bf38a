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
	"os"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// ErrClosed is the outcome of a write that was begun after Close.
var ErrClosed = errors.New("the log is closed")

// ErrCorrupt is wrapped by Open and Replay when the file is not what was written.
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

	mu      sync.Mutex
	queue   []*Write
	running bool // the committer was started
	closed  bool
	wake    chan struct{} // holds one token when queue or closed changed
	done    chan struct{} // closed when the committer has ended

	// The committer's own.
	next      uint64 // sequence number of the next record
	sizeBytes int64  // of all records
	rested    bool   // the last commit failed: the next does not compact
	broken    error  // it is not known what the disk has; nothing is written any more
}

// records is the bucket's name.
const records = "records"

// Open opens or makes the log at path. Only one process has it at a time. Replay
// must be called, once, before the first Begin.
func Open(path string, o Options) (*Journal, error) {
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
	db, err := openDB(path, o.LockTimeout)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use by %s", path, holder(path))
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, corrupt(path, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Journal{path: path, db: db, o: o, wake: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

// openDB opens the file. Its free pages are not written with every commit but found
// again when it is opened: then everything is read anyway.
func openDB(path string, timeout time.Duration) (db *bolt.DB, err error) {
	err = guard(path, func() error {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:        timeout,
			NoFreelistSync: true,
			FreelistType:   bolt.FreelistMapType,
			NoStatistics:   true,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return db, nil
}

func corrupt(path string, cause any) error {
	return fmt.Errorf("%w: %s: %v; restore the file from a backup, or move it away to start with an empty cache", ErrCorrupt, path, cause)
}

// SizeBytes is the size of the file, before the first Begin.
func (j *Journal) SizeBytes() int64 {
	info, err := os.Stat(j.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Close writes what was begun, then closes the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	closed, running := j.closed, j.running
	j.closed = true
	j.mu.Unlock()
	j.nudge()
	if running {
		<-j.done
	}
	if closed {
		return nil
	}
	return j.db.Close()
}
