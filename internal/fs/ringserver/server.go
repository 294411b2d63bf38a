// Package ringserver is the ring server: it keeps the tables of registered iovs and
// rings, takes requests from the rings, has their bytes moved and posts their
// completions.
//
// The way of a request: a client's post wakes a worker, which sweeps the rings
// of that priority (poller.go); the ring admits what its io_depth rule lets
// through, copying it out of the client's reach (ring.go); the worker resolves
// buffer and file, moves the bytes (execute.go) and the ring posts exactly one
// completion, in time (deadline.go). Registrations end when they are unlinked
// or when their process is gone (owner.go).
package ringserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// File is a file lent by the tree for the time of some requests.
type File interface {
	blockio.File
	// Written says that bytes were stored; it returns when nobody can see the
	// attributes of before. It comes before the completion is posted.
	Written()
	Release()
}

// Files is the tree as the ring server sees it.
type Files interface {
	// Acquire lends the file behind an inode number to c. It may be called
	// concurrently. Errors are syscall.Errno: EBADF for a number the kernel does
	// not know or that is no regular file, EACCES where c may not open it.
	Acquire(ino uint64, c cred.Caller, write bool) (File, error)
}

// Options of a Server. Zero values mean the defaults.
type Options struct {
	// Deadline bounds a request from admission to completion; default 5 s. Raise
	// it when a slow disk produces ETIMEDOUT for requests that would succeed.
	Deadline time.Duration
	// Workers is how many requests of one priority are executed at once; default
	// 64. Raise it for a device or a distributed file system that wants more in
	// flight.
	Workers int
	// MaxRegistrations bounds iovs and rings together; default wire.MaxIovs, or
	// what the limits of the process and the kernel let it map, if that is less.
	// A user other than root may have a quarter of them.
	MaxRegistrations int
	Logger           *slog.Logger // default slog.Default
}

// Server serves rings. Registry methods may be called at any time between New and
// Close, concurrently; I/O happens while Run runs.
type Server struct {
	files    Files
	readonly func(uid uint32) bool // of the settings; safe for concurrent use
	mover    blockio.Mover
	opts     Options
	log      *slog.Logger
	table    *table
	owners   *owners
	pollers  [3]*poller // high, normal, low
}

// New makes the three submit semaphores, which the caller's clients find through
// SubmitLink. On an error nothing is left behind.
func New(files Files, readonly func(uid uint32) bool, mover blockio.Mover, o Options) (*Server, error) {
	if o.Deadline <= 0 {
		o.Deadline = 5 * time.Second
	}
	if o.Workers <= 0 {
		o.Workers = 64
	}
	if o.MaxRegistrations <= 0 {
		o.MaxRegistrations = mappable()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Server{files: files, readonly: readonly, mover: mover, opts: o, log: o.Logger, table: newTable(o.MaxRegistrations)}
	var err error
	if s.owners, err = newOwners(s.reap); err != nil {
		return nil, err
	}
	for i, p := range priorities {
		workers := o.Workers
		if p != wire.Normal {
			workers = max(o.Workers/4, 2)
		}
		if s.pollers[i], err = newPoller(s, workers); err != nil {
			s.removeSemaphores()
			s.owners.close()
			s.owners.watch() // returns at once, and closes what it waited on
			return nil, fmt.Errorf("ring server: %w", err)
		}
	}
	return s, nil
}

var priorities = [3]wire.Priority{wire.High, wire.Normal, wire.Low}

func (s *Server) poller(p wire.Priority) *poller { return s.pollers[int(p)+1] }

// SubmitLink is where clients find the submit semaphore of a priority.
func (s *Server) SubmitLink(p wire.Priority) string { return s.poller(p).sem.Path() }

// Run serves until ctx ends; then it takes no more requests, lets those in
// flight finish or run into their deadline, and returns. Workers stuck in a dead
// disk are left behind: the process is about to end.
func (s *Server) Run(ctx context.Context) error {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		s.owners.watch()
	}()
	expiring, stopExpiring := context.WithCancel(context.Background())
	expired := make(chan struct{})
	go func() {
		defer close(expired)
		s.expire(expiring)
	}()
	var pollers sync.WaitGroup
	for _, p := range s.pollers {
		pollers.Go(p.run)
	}
	<-ctx.Done()
	for _, p := range s.pollers {
		p.stop()
	}
	idle := make(chan struct{})
	go func() {
		pollers.Wait()
		close(idle)
	}()
	var err error
	select {
	case <-idle:
	case <-time.After(s.opts.Deadline + time.Second):
		err = errors.New("ring server: requests are stuck in the data directory's file system; left behind")
	}
	stopExpiring()
	<-expired
	s.owners.close()
	<-watching
	return err
}

// Close takes the semaphores' names away and forgets all registrations. Call it
// once, after Run has returned.
func (s *Server) Close() {
	for _, e := range s.table.all() {
		s.drop(e, "the daemon ends")
	}
	s.removeSemaphores()
}

// removeSemaphores takes the names away. The mappings stay until the process
// ends: a late timer or worker may still post.
func (s *Server) removeSemaphores() {
	for _, p := range s.pollers {
		if p != nil {
			os.Remove(p.sem.Path())
		}
	}
}

// mappable is how many registrations this process can hold: each takes a
// descriptor and a mapping, and the process needs some for itself. Without the
// bound, the mapping that fails could be one of the runtime's own.
func mappable() int {
	n := wire.MaxIovs
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < uint64(2*n) {
		n = int(files.Cur) / 2
	}
	if b, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		if maps, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			n = min(n, maps/2)
		}
	}
	return max(n, 64)
}
