// Package ringserver serves the shared memory rings of USRBIO: it keeps the
// registered iovs and rings, takes requests from the rings, moves their bytes and
// posts their completions.
//
// A request passes through these files. A client's post (submit.go) wakes the leader of a
// priority's workers (poller.go), which looks at the rings of the users who have posted
// (look.go). A ring admits as many requests as its io_depth rule allows and copies them
// out of the client's reach (ring.go). The workers take turns: of users, of a user's
// rings, of a ring's requests, a piece of a large one at a time (schedule.go). A worker
// checks its request, resolves buffer and file and moves the bytes (execute.go). The ring
// posts exactly one completion (ring.go). A request that takes too long is answered
// whatever the workers do (deadline.go), and workers that are stuck are replaced
// (stuck.go). A registration ends when it is unlinked or when its process has exited
// (owner.go, unseen.go), which may leave an object to be removed (leftover.go).
//
// A client's rights apply in two places: Register opens the shared memory as the
// client, and Files.Acquire opens the file of a request as the ring's user.
package ringserver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/rows"
	"github.com/kv3fs/kv3fs/internal/histogram"
	"github.com/kv3fs/kv3fs/internal/logpace"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// File is a file that the tree lends for the duration of some requests.
type File interface {
	blockio.File
	// Written reports that bytes were stored. It returns when no process can see the
	// old attributes any more, and is called before the completion is posted.
	Written()
	// Directory returns the first directories of the file's path, by which Traffic counts,
	// as valid UTF-8. It is called for each request or batch.
	Directory() string
	// Reserve waits until deadline for room for n bytes that are to be written at off, and
	// returns what Settle is to end. EAGAIN: there is none now, and deadline is zero. The
	// other errors are the client's: ENOSPC, EDQUOT.
	Reserve(off, n int64, deadline time.Time, cancel <-chan struct{}) (reserved int64, err error)
	// Settle is called after writes, with the sum of what Reserve returned for them.
	Settle(reserved int64)
	// HasRead says that a ring has read bytes of the file.
	HasRead()
	// ReadFromStart says that a request of a user has read the file's first bytes.
	ReadFromStart(uid uint32)
	// Renew opens the file again if err, of a use of its descriptors, says that the file system has broken them. It reports
	// whether another try is worth it. opened is what Opened returned before that use.
	Renew(opened uint64, err error) bool
	Opened() uint64
	// Sums returns the checksums of the file, or nil, which is valid, if none are kept.
	Sums() *integrity.File
	// Damaged says that bytes were read that are not what was written. It returns at once.
	Damaged(integrity.Damage)
	Release()
}

// Files lends files by inode number. It is implemented over the tree, which this
// package must not import.
type Files interface {
	// Acquire lends the file with inode number ino to c. It may be called concurrently.
	// Errors are syscall.Errno: EBADF for a number that the kernel does not know or
	// that is no regular file, EACCES where c may not open it.
	Acquire(ino uint64, c cred.Caller, write bool) (File, error)
	// Path returns the path of a file, for people; "" where the number is unknown. It does not wait for the file system.
	Path(ino uint64) string
}

// Options configure a Server. Zero values mean the defaults.
type Options struct {
	// Deadline bounds a request from admission to completion; default 5 s. Raise
	// it when a slow disk produces ETIMEDOUT for requests that would succeed.
	Deadline time.Duration
	// Workers is how many requests of one priority are executed at once; default
	// 64. Raise it for a device or a distributed file system that wants more in
	// flight.
	Workers int
	// MaxRegistrations bounds iovs and rings together; default wire.MaxIovs, or what
	// the limits of process and kernel allow, if that is less. A user other than root
	// may have a quarter of them.
	MaxRegistrations int
	// MaxMappedBytes bounds the mappings of iovs and rings; default 32 TiB.
	MaxMappedBytes int64
	// MaxRingUsers bounds the users, other than root, that have submit semaphores; default
	// 4096, or what the limit on open files allows, if that is less.
	MaxRingUsers int
	// SlowIO is from when on a request is worth a line in the log; 0: none is.
	SlowIO time.Duration
	// DiskFull is called, by workers, for each write that the file system refuses with ENOSPC, in place of a line in the log; nil: there is
	// a line, now and then.
	DiskFull func()
	// Trace is called by workers with each batch, and must return at once; nil: nothing is traced, at no cost.
	Trace func(Batch)
	// Restart is the state that registrations and rings outlive this daemon in, and those of its predecessor are found in; nil:
	// they end with the daemon.
	Restart *restart.Dir
	// NoneInherited is called, concurrently, when the last of a user's registrations that a predecessor has left has ended, and
	// must return at once; nil: nobody is told. See Server.Inherited.
	NoneInherited func(uid uint32)
	// SameMount says that the predecessor's mount goes on, and so the handles of its directories.
	SameMount bool
	Health    *health.Store // of the files' file system; nil: nobody looks after it
	Logger    *slog.Logger  // default slog.Default
}

// Server serves rings. Its registry methods may be called concurrently at any time
// between New and Close; I/O happens while Run runs.
type Server struct {
	files     Files
	readonly  func(uid uint32) bool // safe for concurrent use
	mover     blockio.Mover
	opts      Options
	log       *slog.Logger
	pace      logpace.Pace // of what clients can repeat
	clock     *clock
	unmaps    unmapper
	table     *table
	owners    *owners
	leftovers *leftovers
	// mappedBytes counts the mappings of clients' objects.
	mappedBytes *quota.Quota
	shms        *devShms
	submit      *submitSems
	pollers     [3]*poller // high, normal, low
	traffic     *rows.Table[string, *directoryTraffic]
	clients     *rows.Table[clientKey, *clientTraffic]
	refusals    refusals
	slowIO      atomic.Int64            // see SetSlowIO
	expired     [2]atomic.Int64         // requests that met their deadline: reads, writes
	device      [2]*histogram.Histogram // see Device
	stuck       bool                    // Run has left stuck workers behind

	legacy    *legacy       // nil: nothing outlives this daemon
	lastID    atomic.Uint64 // of registrations in legacy
	inherited inherited
	successor atomic.Bool // see Leave
	last      atomic.Bool // see Last
	closing   atomic.Bool // Close has begun
	paused    atomic.Bool // see Pause
}

// New returns a Server that is ready for registrations. readonly reports whether a
// user's writes are refused. After an error nothing is left behind.
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
	if o.MaxMappedBytes <= 0 {
		o.MaxMappedBytes = 32 << 40
	}
	if o.MaxRingUsers <= 0 {
		o.MaxRingUsers = defaultMaxRingUsers()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Server{files: files, readonly: readonly, mover: mover, opts: o, log: o.Logger, clock: newClock(max(o.Deadline/4, 250*time.Millisecond)), table: newTable(o.MaxRegistrations), mappedBytes: quota.New(o.MaxMappedBytes), traffic: rows.New[string](mostDirectories, newDirectoryTraffic), clients: rows.New[clientKey](mostClients, newClientTraffic), device: newDeviceTimes()}
	s.SetSlowIO(o.SlowIO)
	var err error
	if s.legacy, err = newLegacy(o.Restart); err != nil {
		return nil, err
	}
	if s.owners, err = newOwners(s.reap, newUnseen(o.Logger, s.reap), watchable()); err != nil {
		return nil, err
	}
	s.owners.legacy = s.legacy
	s.submit = newSubmitSems(o.Logger, o.MaxRingUsers)
	s.submit.legacy = s.legacy
	s.leftovers = newLeftovers(o.Logger, s.submit.tidiers)
	s.shms = newDevShms(s.submit.endIn)
	for i, p := range priorities {
		workers := o.Workers
		if p != wire.Normal {
			workers = max(o.Workers/4, 2)
		}
		s.pollers[i] = newPoller(s, p, workers)
	}
	if s.legacy != nil {
		if err := s.adopt(); err != nil {
			s.Leave()
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Leave says that a successor of this daemon is expected: from the end of Run's context on no request is begun, and Close
// leaves registrations, requests and semaphores to it. Without Options.Restart it changes nothing.
func (s *Server) Leave() { s.successor.Store(s.legacy != nil) }

// Last says that no successor of this daemon is expected, whatever Leave has said: clients are told now, and so do not wait for one even if
// this process ends before Close.
func (s *Server) Last() {
	s.successor.Store(false)
	s.last.Store(true)
	for _, e := range s.table.all() {
		if e.ring != nil && e.ring.journal != nil {
			e.ring.endPromise()
		}
	}
}

var priorities = [3]wire.Priority{wire.High, wire.Normal, wire.Low}

func (s *Server) poller(p wire.Priority) *poller { return s.pollers[int(p)+1] }

// SubmitLink returns the path of c's submit semaphore of a priority, in the /dev/shm of c's process. It creates the
// user's semaphores there at their first use. EMFILE: too many users have rings, or the user has them in too many /dev/shm. EPERM: a daemon
// without privileges serves its own user only. EACCES: c's /dev/shm is no tmpfs, or c may not write to it. ENOSPC: it is full.
func (s *Server) SubmitLink(c cred.Caller, p wire.Priority) (string, error) {
	path, err := s.submitLink(c, p)
	if err != nil {
		s.noteNoSemaphore(c, err)
		s.refusals.add(SemaphoreRefused, err)
	}
	return path, err
}

func (s *Server) submitLink(c cred.Caller, p wire.Priority) (string, error) {
	x, _, err := s.shms.find(c)
	if err != nil {
		return "", err
	}
	if x == nil {
		return s.submit.link(c.UID, p)
	}
	defer x.release()
	if err := s.owners.reads(c.UID, c.PID, x); err != nil {
		return "", err
	}
	return s.submit.linkIn(c, x, p)
}

// SemaphoreNames begins the names that all submit semaphores of this server have in
// /dev/shm, and no others (see RemoveSemaphores).
func (s *Server) SemaphoreNames() string { return s.submit.namePrefix() }

// Run serves until ctx ends. Then it takes no more requests, waits until those in
// flight finish or meet their deadline, and returns. Workers that are stuck in a
// dead disk are left behind: the process is about to exit.
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
		s.tickRings(expiring)
	}()
	tidying, stopTidying := context.WithCancel(context.Background())
	var tidiers sync.WaitGroup
	tidiers.Go(func() { s.leftovers.run(tidying) })
	tidiers.Go(func() { s.owners.unseen.run(tidying) })
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
		s.stuck = true
		err = errors.New("ring server: the data directory's file system does not answer: requests that are stuck in it were abandoned")
	}
	stopExpiring()
	<-expired
	s.owners.stop()
	<-watching
	stopTidying()
	tidiers.Wait()
	return err
}

// Left reports, after Close, whether anything was left to a successor.
func (s *Server) Left() bool { return s.successor.Load() }

// Close ends all registrations and removes the semaphores, unless they are left to a successor. Call it once, after Run
// has returned.
func (s *Server) Close() {
	s.closing.Store(true)
	held := s.shms.holdAll() // for what is left to a successor in them
	all := s.table.all()
	if len(all) == 0 {
		s.successor.Store(false) // there is nothing to go on with
	}
	for _, e := range all {
		if e.ring != nil && e.ring.journal != nil && !s.successor.Load() {
			_ = e.ring.promise(0) // nobody comes, so its client need not wait
		}
		s.drop(e, "the daemon is stopping")
	}
	s.unmaps.close()
	s.leftovers.close()
	s.owners.close()
	leave := s.successor.Load()
	if s.stuck { // a worker that comes back may still wait for the semaphores
		if !leave {
			s.submit.closeNames()
		}
		return
	}
	s.submit.close(leave)
	s.owners.releaseAll()
	for _, x := range held {
		x.release()
	}
}

// watchable returns how many client processes this process can watch. Each takes a
// descriptor, of those that registrations and the mount's files leave.
func watchable() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return 64
	}
	return int(min(max(files.Cur/8, 64), wire.MaxIovs))
}

// mappable returns how many registrations this process can hold. Each takes a
// descriptor and a mapping, and the process needs some for itself: without the
// bound, the mapping that fails could be one of the Go runtime's.
func mappable() int {
	const part = 4 // of the descriptors
	n := wire.MaxIovs
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/part < uint64(n) {
		n = int(files.Cur / part)
	}
	if b, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		if maps, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			n = min(n, maps/2)
		}
	}
	return max(n, 64)
}
