package tree

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

const (
	// A removal holds a descriptor and a buffer for each level. Subtrees below this
	// depth are first moved up to the top.
	deepestRemoval = 32
	// RemovalDescriptors is how many descriptors a recursive removal has open at most.
	RemovalDescriptors = deepestRemoval + 3
	// removalPasses bounds how often a directory is listed, because other processes may
	// keep creating entries.
	removalPasses = 2
	// mostMovedUp bounds the subtrees moved up, which is half a million levels.
	mostMovedUp = 16 << 10
	// ownerSample is the number of directories whose owner is checked before anything
	// is removed.
	ownerSample = 1024

	ownerAll = unix.S_IRWXU
)

// removal is one recursive removal. It runs with the rights of the caller.
type removal struct {
	tree    *Tree
	caller  cred.Caller
	proceed Proceed

	top    *node // the directory to be removed; nil when the kernel does not know it
	topFD  int
	moved  []string // subtrees moved up into it
	moves  int
	sample int // how many more directories to check for their owner
}

func (t *Tree) removal(c cred.Caller, proceed Proceed) *removal {
	return &removal{tree: t, caller: c, proceed: orNothing(proceed), sample: ownerSample}
}

func orNothing(proceed Proceed) Proceed {
	if proceed == nil {
		return func(...uint64) error { return nil }
	}
	return proceed
}

// remove removes the entry name of directory dir, whose node is d or nil.
func (r *removal) remove(d *node, dir int, name string) error {
	st, err := statAt(dir, name)
	if err != nil {
		return err
	}
	if r.tree.hiddenInode(&st) {
		return unix.ENOENT
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir {
		if err := r.empty(dir, name); err != nil && !removedMeanwhile(err) {
			return err
		}
	}
	if _, err = r.tree.unlinkOne(d, dir, name, true, r.proceed); isDir && removedMeanwhile(err) {
		return nil
	}
	return err
}

// removedMeanwhile reports whether an error says of a directory that another process has removed it, perhaps on another host.
func removedMeanwhile(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)
}

// empty removes the contents of a directory, if all of it may be removed.
func (r *removal) empty(dir int, name string) error {
	if err := r.allowed(dir, name, 0); err != nil {
		return err
	}
	list, err := r.open(dir, name)
	if err != nil {
		return err
	}
	defer list.Close()
	r.top, r.topFD = list.node, list.fd
	if err := r.clear(list, 0); err != nil {
		return err
	}
	for len(r.moved) > 0 {
		last := r.moved[len(r.moved)-1]
		r.moved = r.moved[:len(r.moved)-1]
		if err := r.entry(list, last, 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *removal) open(dir int, name string) (*Dir, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	r.tree.opened()
	return &Dir{tree: r.tree, node: r.tree.nodeOf(fd), fd: fd}, nil
}

// allowed returns an error unless directory name in dir, and those below it, belong to
// the caller.
func (r *removal) allowed(dir int, name string, depth int) error {
	if r.caller.Root() || r.sample == 0 || depth == deepestRemoval {
		return nil
	}
	r.sample--
	list, err := r.open(dir, name)
	if err != nil {
		return err
	}
	defer list.Close()
	st, err := statFD(list.fd)
	if err != nil {
		return err
	}
	if st.Uid != r.caller.UID || st.Mode&ownerAll != ownerAll {
		return unix.EPERM
	}
	var refused error
	_, err = list.List(0, func(e Dirent) bool {
		if refused = r.proceed(); refused != nil || e.Type != 0 && e.Type != unix.S_IFDIR {
			return refused == nil
		}
		err := r.allowed(list.fd, e.Name, depth+1)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			refused = err
		}
		return refused == nil && r.sample > 0
	})
	if refused != nil {
		return refused
	}
	return err
}

// clear removes the contents of an open directory, depth levels below the top.
func (r *removal) clear(list *Dir, depth int) error {
	// On some file systems a removal moves other entries, so one pass may miss some.
	for range removalPasses {
		seen := false
		var failed error
		_, err := list.List(0, func(e Dirent) bool {
			seen = true
			failed = r.entry(list, e.Name, depth)
			return failed == nil
		})
		if failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
		if !seen {
			return nil
		}
	}
	return nil // removing the directory shows whether it is empty
}

// entry removes the entry name of an open directory. It may be gone already.
func (r *removal) entry(in *Dir, name string, depth int) error {
	if err := r.proceed(); err != nil {
		return err
	}
	isDir, err := r.tree.unlinkOne(in.node, in.fd, name, false, r.proceed)
	switch {
	case removedMeanwhile(err):
		return nil
	case err == nil || !isDir || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return err
	case depth == deepestRemoval:
		return r.moveUp(in, name)
	}
	list, err := r.open(in.fd, name)
	if removedMeanwhile(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = r.clear(list, depth+1)
	list.Close()
	if err == nil {
		_, err = r.tree.unlinkOne(in.node, in.fd, name, false, r.proceed)
	}
	if removedMeanwhile(err) {
		return nil
	}
	return err
}

// moveUp renames a subtree to an entry of the top, where it is shallow.
func (r *removal) moveUp(in *Dir, name string) error {
	if r.moves++; r.moves > mostMovedUp {
		return unix.ENOTEMPTY
	}
	t := r.tree
	defer t.moves.share()()
	for try := range 100 {
		up := name
		if try > 0 {
			up = strconv.Itoa(r.moves) + "." + strconv.Itoa(try)
		}
		err := t.renameToFree(place{in.node, name}, in.fd, place{r.top, up}, r.topFD, []Proceed{r.proceed})
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err == nil {
			r.moved = append(r.moved, up)
		}
		return err
	}
	return unix.ENOTEMPTY
}
