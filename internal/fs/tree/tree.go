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
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/fs/lookups"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// StateName is the entry of the data directory that belongs to kv3fs and that
// clients do not see.
const StateName = ".kv3fs"

// Options of Open. The zero value is valid.
type Options struct {
	// Invalidate tells the kernel's cache that attributes of a node are stale, and with
	// pages also the bytes; it returns when no older ones will be used. nil: there is no
	// cache. It may be called concurrently and must not call back into the tree.
	Invalidate func(nodeID uint64, pages bool)

	// Spare bounds the descriptors that the tree holds beyond one for each open file and
	// directory. 0: 4096.
	Spare int

	// Sums keeps checksums of what is written through the tree. nil: nobody does.
	Sums *integrity.Store

	// Aside returns the files of the entry that a file belongs to, which is damaged, with their new names in
	// their directories, in the order in which they are renamed; none where that is not for us to do. nil: it never is.
	Aside func(path string) []Aside

	// Usage hears of every change of what files take. nil: nobody does.
	Usage Usage

	// Grants keeps what rings may do with files for a successor of the daemon. nil: nobody does.
	Grants Grants

	// Lookups counts what clients look for and find. nil: nobody does.
	Lookups *lookups.Counter

	// Shared is for files that other hosts change.
	Shared Sharing

	// State is where what a successor must know is kept. nil: there is none.
	State *restart.Dir
	// StateLost is called once if State cannot be written any more. nil: nothing is.
	StateLost func(error)

	// Readonly makes Open accept a data directory that this user cannot write to. The
	// caller refuses changes.
	Readonly bool
}

// Tree is the file tree over one data directory.
type Tree struct {
	dir        string
	rootFD     int
	root       *node
	state      identity // of StateName
	kept       identity // of kv3fs.KeepDir, if it is known
	start      time.Time
	abandoned  atomic.Bool
	invalidate atomic.Pointer[func(uint64, bool)]

	nextID     atomic.Uint64
	byID       *index[uint64, *node]
	byIdentity *index[identity, *node]
	byIno      *index[uint64, *node]
	nodes      atomic.Int64  // in byID
	dropped    atomic.Uint64 // nodes that were
	forgotten  forgottenNodes

	// mu guards places, reference counts and membership in the indexes. No system
	// call is made under it, except dup.
	mu    sync.RWMutex
	links map[*node]map[place]bool // places of nodes with several names, beyond node.place
	held  map[uint32]int           // nodes by the user that they are charged to; no zeros
	// orphans holds O_PATH descriptors of files that have no name and that the
	// kernel still knows; closing holds those that it has forgotten.
	orphans map[*node]orphan
	closing []orphan

	spare *quota.Quota // see spare.go

	// An entry is moved or removed and the tree updated in a shared move, and in one that
	// runs alone where a path must not change. Nothing that opens a node's path may be
	// called in either.
	moves   moves
	journal *journal // nil: a successor will know nothing
	early   early
	renames atomic.Uint64 // renames begun or finished

	keptOut keptOut

	// rights counts changes that decide who can reach what: of modes and owners of
	// directories, and of their places. They void older verdicts about files.
	rights atomic.Uint64

	locksMu sync.Mutex
	locks   map[identity]uint32 // locked directories, and whose locks they are
	lockers *quota.Quota

	listings atomic.Int64 // directories with a buffer, see Dir

	inUse atomic.Int64 // files and directories open; counted with invariants only

	generation  uint64
	recalled    int // nodes of a predecessor
	recalledErr error

	acls    bool // the data directory has POSIX ACLs
	overlay bool // it is on overlayfs, where an inode gets another time of birth when it is copied up
	// behindFUSE says that another program serves it to the kernel, see File.recognized.
	behindFUSE bool
	reserve    reserve

	grants     Grants           // nil: none
	usage      Usage            // nil: none
	lookups    *lookups.Counter // nil: none
	sharing    Sharing
	sums       *integrity.Store
	aside      func(path string) []Aside
	damaged    chan found // Run sets these aside
	accounting keyLocks
	mapped     mappings

	directMu sync.Mutex
	direct   map[uint64]bool // by device: does it support O_DIRECT
}

// Open returns the tree over dir. The caller closes it after the last use. The umask
// of the process must be 0: clients have applied their own, and there is no safe way
// to add bits to an entry that was created without them.
func Open(dir string, opts Options) (*Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", dir, err)
	}
	t := &Tree{
		dir: dir, rootFD: fd, start: time.Now(), usage: opts.Usage, grants: opts.Grants, lookups: opts.Lookups, sharing: opts.Shared, sums: opts.Sums, aside: opts.Aside, damaged: make(chan found, waitingAside),
		byID:       newIndex[uint64, *node](sameHash),
		byIdentity: newIndex[identity, *node](identity.hash),
		byIno:      newIndex[uint64, *node](sameHash),
		links:      make(map[*node]map[place]bool),
		held:       make(map[uint32]int),
		orphans:    make(map[*node]orphan),
		locks:      make(map[identity]uint32),
		direct:     make(map[uint64]bool),
		spare:      newSpare(opts.Spare),
		lockers:    quota.New(mostLocks),
		forgotten:  forgottenNodes{many: make(chan struct{}, 1)},
	}
	t.SetInvalidate(opts.Invalidate)
	t.early.over.Store(opts.State == nil || opts.Invalidate != nil)
	if err := t.begin(opts.Readonly); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	if opts.State != nil {
		t.beginJournal(opts.State, opts.StateLost)
	}
	return t, nil
}

func (t *Tree) begin(readonly bool) error {
	fs, err := t.Statfs()
	if err != nil {
		return err
	}
	t.overlay, t.behindFUSE = fs.Type == unix.OVERLAYFS_SUPER_MAGIC, fs.Type == unix.FUSE_SUPER_MAGIC
	st, err := statFD(t.rootFD)
	if err != nil {
		return err
	}
	t.root = &node{id: RootID, ino: RootID, key: t.identityOf(&st), kind: unix.S_IFDIR, lookups: 1}
	t.nextID.Store(RootID)
	t.byID.put(RootID, t.root)
	t.nodes.Store(1)
	t.byIno.put(RootID, t.root)
	t.byIdentity.put(t.root.key, t.root)

	probe, err := openBeneath(t.rootFD, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("openat2: %w: use Linux 5.6 or later", err)
	}
	unix.Close(probe)
	if err := t.beginState(); err != nil && !readonly {
		return err
	}
	if t.sharing.Uncached {
		t.kept = t.keptIdentity()
	}
	t.acls = keepsACLs(t.rootFD)
	if err := cred.Ready(); err != nil {
		return err
	}
	return nil
}

// beginState makes the state directory if it is missing, and hides it.
func (t *Tree) beginState() error {
	if err := unix.Mkdirat(t.rootFD, StateName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: %w", StateName, err)
	}
	state, err := statAt(t.rootFD, StateName)
	if err != nil {
		return fmt.Errorf("%s: %w", StateName, err)
	}
	t.state = t.identityOf(&state)
	if state.Mode&^unix.S_ISGID != unix.S_IFDIR|0o700 || int(state.Uid) != os.Geteuid() {
		return fmt.Errorf("%s has mode %o and owner %d, so another user may have made it: make it a directory of uid %d with mode 700",
			StateName, state.Mode, state.Uid, os.Geteuid())
	}
	return nil
}

// keptIdentity returns the identity of the keepers' state directory. Other than ours it may be removed, so without a time of birth
// another entry may have its identity later: then its name alone hides it.
func (t *Tree) keptIdentity() identity {
	st, err := statAt(t.rootFD, kv3fs.KeepDir)
	if is := t.identityOf(&st); err == nil && is.birth != 0 {
		return is
	}
	return identity{}
}

// SetInvalidate sets Options.Invalidate, for a cache that is made after the tree.
func (t *Tree) SetInvalidate(fn func(nodeID uint64, pages bool)) {
	t.early.over.Store(true)
	if fn == nil {
		fn = func(uint64, bool) {}
	}
	t.invalidate.Store(&fn)
}

// Dir returns the data directory as it was given to Open.
func (t *Tree) Dir() string { return t.dir }

// Abandon makes Close do nothing. Use it when a call into the tree hangs: the call
// keeps using the tree's descriptors, and their numbers must not get reused.
func (t *Tree) Abandon() { t.abandoned.Store(true) }

// Close closes the data directory. All handles, directories and acquired files must
// have been closed and released.
func (t *Tree) Close() error {
	if t.abandoned.Load() {
		return nil
	}
	t.checkClose()
	t.mu.Lock()
	for n, o := range t.orphans {
		t.closing = append(t.closing, o)
		delete(t.orphans, n)
	}
	t.mu.Unlock()
	for _, o := range t.closing {
		t.closeOrphan(o)
	}
	return errors.Join(t.closeJournal(), unix.Close(t.rootFD))
}

// now returns nanoseconds on the tree's clock, never 0.
func (t *Tree) now() int64 { return int64(time.Since(t.start)) + 1 }
