package tree

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// StateName is the entry of the data directory that belongs to kv3fs and that
// clients do not see.
const StateName = ".kv3fs"

// Options of Open. The zero value is valid.
type Options struct {
	// Invalidate tells whoever caches attributes of a node that they are stale;
	// it returns when no older ones will be used. nil: nobody caches. It may be
	// called concurrently and must not call back into the stage.
	Invalidate func(nodeID uint64)
}

// Stage is the tree over one data directory.
type Stage struct {
	dir        string
	rootFD     int
	root       *node
	state      identity // of StateName
	start      time.Time
	abandoned  atomic.Bool
	invalidate atomic.Pointer[func(uint64)]

	nextID     atomic.Uint64
	byID       *index[uint64, *node]
	byIdentity *index[identity, *node]
	byIno      *index[uint64, *node]
	forgotten  forgottenNodes

	// treeMu guards places, reference counts and membership in the indexes.
	// No system call is made under it.
	treeMu sync.RWMutex
	links  map[*node]map[place]bool // further names of nodes with several
	// orphans are O_PATH descriptors of files without a name that the kernel
	// still knows; closing are those it has forgotten.
	orphans map[*node]int
	closing []int

	// renameMu is held shared while an entry moves or goes and the tree is
	// brought up to date, and exclusively by whoever needs a path to be true.
	// Nothing that opens a node's path may be called under it.
	renameMu sync.RWMutex
	renames  atomic.Uint64 // renames begun or finished

	// rights counts changes of who can reach what: of modes and owners of
	// directories, and of their places. Older verdicts about files are void.
	rights atomic.Uint64

	locksMu sync.Mutex
	locks   map[identity]bool // locked directories

	directMu sync.Mutex
	direct   map[uint64]bool // does a device take O_DIRECT
}

// Open makes dir a stage. The caller closes it after the last use. The umask of
// the process must be 0: clients have applied their own, and there is no safe way
// to give an entry bits that it was made without.
func Open(dir string, opts Options) (*Stage, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", dir, err)
	}
	s := &Stage{
		dir: dir, rootFD: fd, start: time.Now(),
		byID:       newIndex[uint64, *node](sameHash),
		byIdentity: newIndex[identity, *node](identity.hash),
		byIno:      newIndex[uint64, *node](sameHash),
		links:      make(map[*node]map[place]bool),
		orphans:    make(map[*node]int),
		locks:      make(map[identity]bool),
		direct:     make(map[uint64]bool),
		forgotten:  forgottenNodes{many: make(chan struct{}, 1)},
	}
	s.SetInvalidate(opts.Invalidate)
	if err := s.begin(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	return s, nil
}

func (s *Stage) begin() error {
	st, err := statFD(s.rootFD)
	if err != nil {
		return err
	}
	s.root = &node{id: RootID, ino: RootID, key: identityOf(&st), kind: unix.S_IFDIR, lookups: 1}
	s.nextID.Store(RootID)
	s.byID.put(RootID, s.root)
	s.byIno.put(RootID, s.root)
	s.byIdentity.put(s.root.key, s.root)

	probe, err := openBeneath(s.rootFD, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("openat2 (Linux 5.6 or later is needed): %w", err)
	}
	unix.Close(probe)
	if err := unix.Mkdirat(s.rootFD, StateName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: %w", StateName, err)
	}
	state, err := statAt(s.rootFD, StateName)
	if err != nil {
		return fmt.Errorf("%s: %w", StateName, err)
	}
	if state.Mode&^unix.S_ISGID != unix.S_IFDIR|0o700 || int(state.Uid) != os.Geteuid() {
		return fmt.Errorf("%s has mode %o and owner %d: somebody else may have made it; it must be a directory of uid %d with mode 700",
			StateName, state.Mode, state.Uid, os.Geteuid())
	}
	s.state = identityOf(&state)
	if err := cred.Ready(); err != nil {
		return err
	}
	return nil
}

// SetInvalidate sets Options.Invalidate once whoever caches exists.
func (s *Stage) SetInvalidate(fn func(nodeID uint64)) {
	if fn == nil {
		fn = func(uint64) {}
	}
	s.invalidate.Store(&fn)
}

// Dir returns the data directory as it was given to Open.
func (s *Stage) Dir() string { return s.dir }

// Abandon makes Close do nothing: somebody who hangs in the stage goes on using
// its descriptors, and their numbers must not come to mean other files.
func (s *Stage) Abandon() { s.abandoned.Store(true) }

// Close gives the data directory back. Handles and acquired files must have
// been released.
func (s *Stage) Close() error {
	if s.abandoned.Load() {
		return nil
	}
	s.treeMu.Lock()
	for n, fd := range s.orphans {
		s.closing = append(s.closing, fd)
		delete(s.orphans, n)
	}
	s.treeMu.Unlock()
	s.closeForgotten()
	return unix.Close(s.rootFD)
}

// now is nanoseconds on the stage's clock, never 0.
func (s *Stage) now() int64 { return int64(time.Since(s.start)) + 1 }
