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

// Tree is the tree over one data directory.
type Tree struct {
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

	// mu guards places, reference counts and membership in the indexes.
	// No system call is made under it.
	mu    sync.RWMutex
	links map[*node]map[place]bool // further names of nodes with several
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

	inUse atomic.Int64 // files and directories open; counted with invariants only

	directMu sync.Mutex
	direct   map[uint64]bool // does a device take O_DIRECT
}

// Open makes dir a stage. The caller closes it after the last use. The umask of
// the process must be 0: clients have applied their own, and there is no safe way
// to give an entry bits that it was made without.
func Open(dir string, opts Options) (*Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", dir, err)
	}
	t := &Tree{
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
	t.SetInvalidate(opts.Invalidate)
	if err := t.begin(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	return t, nil
}

func (t *Tree) begin() error {
	st, err := statFD(t.rootFD)
	if err != nil {
		return err
	}
	t.root = &node{id: RootID, ino: RootID, key: identityOf(&st), kind: unix.S_IFDIR, lookups: 1}
	t.nextID.Store(RootID)
	t.byID.put(RootID, t.root)
	t.byIno.put(RootID, t.root)
	t.byIdentity.put(t.root.key, t.root)

	probe, err := openBeneath(t.rootFD, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("openat2 (Linux 5.6 or later is needed): %w", err)
	}
	unix.Close(probe)
	if err := unix.Mkdirat(t.rootFD, StateName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: %w", StateName, err)
	}
	state, err := statAt(t.rootFD, StateName)
	if err != nil {
		return fmt.Errorf("%s: %w", StateName, err)
	}
	if state.Mode&^unix.S_ISGID != unix.S_IFDIR|0o700 || int(state.Uid) != os.Geteuid() {
		return fmt.Errorf("%s has mode %o and owner %d: somebody else may have made it; it must be a directory of uid %d with mode 700",
			StateName, state.Mode, state.Uid, os.Geteuid())
	}
	t.state = identityOf(&state)
	if err := cred.Ready(); err != nil {
		return err
	}
	return nil
}

// SetInvalidate sets Options.Invalidate once whoever caches exists.
func (t *Tree) SetInvalidate(fn func(nodeID uint64)) {
	if fn == nil {
		fn = func(uint64) {}
	}
	t.invalidate.Store(&fn)
}

// Dir returns the data directory as it was given to Open.
func (t *Tree) Dir() string { return t.dir }

// Abandon makes Close do nothing: somebody who hangs in the stage goes on using
// its descriptors, and their numbers must not come to mean other files.
func (t *Tree) Abandon() { t.abandoned.Store(true) }

// Close gives the data directory back. Handles and acquired files must have
// been released.
func (t *Tree) Close() error {
	if t.abandoned.Load() {
		return nil
	}
	t.checkClose()
	t.mu.Lock()
	for n, fd := range t.orphans {
		t.closing = append(t.closing, fd)
		delete(t.orphans, n)
	}
	t.mu.Unlock()
	t.closeForgotten()
	return unix.Close(t.rootFD)
}

// now is nanoseconds on the stage's clock, never 0.
func (t *Tree) now() int64 { return int64(time.Since(t.start)) + 1 }
