package keeper

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// found is a file that has a name in a directory.
type found struct {
	path, name string
	key        FileKey
	bytes      int64 // on the disk
	lastUse    uint32
	uses       uint8
	inUse      bool
	several    bool // it has several names
	known      bool // to the inventory; the others are as old as their mtime
	stat       func() (inventory.Info, error)
}

// names calls fn with the files of a directory, in no order, until it returns false or ctx ends.
func (k *Keeper) names(ctx context.Context, p place, fn func(found) bool) error {
	prefix := p.path + "/"
	if p.path == "." {
		prefix = ""
	}
	trusted := k.listsNumbers()
	err := k.inv.Names(p.dir, func(name string, ino uint64, stat func() (inventory.Info, error)) bool {
		if f, ok := k.lookAt(name, prefix+name, ino, trusted, stat); ok && !fn(f) {
			return false
		}
		return ctx.Err() == nil
	})
	return errors.Join(err, ctx.Err())
}

// lookAt returns what is known of a file. ino is its number as the directory has it.
func (k *Keeper) lookAt(name, at string, ino uint64, trusted bool, stat func() (inventory.Info, error)) (found, bool) {
	f := found{path: at, name: name, stat: stat, key: FileKey{Dev: k.inv.KeyOf(k.inv.Root()).Dev, Ino: ino}}
	if trusted {
		if k.fill(&f) {
			return f, true
		}
		if _, dir := k.inv.Directory(f.key); dir {
			return found{}, false
		}
	}
	info, err := stat()
	if err != nil || !info.Regular {
		return found{}, false
	}
	f.key = info.Key
	if !k.fill(&f) { // no event has told of it
		f.bytes, f.several = info.AllocatedBytes, info.Links > 1
		f.lastUse = k.inv.Now() - uint32(min(max(time.Since(time.Unix(0, info.MtimeNs))/time.Second, 0), 1<<30))
	}
	return f, true
}

// fill takes what the inventory knows of a file.
func (k *Keeper) fill(f *found) bool {
	known, ok := k.inv.File(f.key)
	if ok {
		f.bytes, f.lastUse, f.uses, f.inUse, f.several, f.known = known.Bytes, known.LastUse, known.Uses, known.InUse, known.Several, true
	}
	return ok
}

// listsNumbers reports whether directories list the inode numbers that fstat reports. Those of
// overlayfs need not.
func (k *Keeper) listsNumbers() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(k.inv.FD(), &st) == nil && st.Type != unix.OVERLAYFS_SUPER_MAGIC
}

// meaning is a pattern as it is looked for.
type meaning struct {
	pattern string
	plain   bool   // it has no wildcards
	path    string // of what it names, if it is plain
}

// meaningOf returns what an operator means: the file or directory that has exactly this name
// if there is one, or else what the pattern matches.
func (k *Keeper) meaningOf(text string) (meaning, error) {
	text = path.Clean(text)
	if !strings.ContainsAny(text, `*?[\`) || k.isThere(text) {
		return meaning{globEscape(text), true, text}, checkPattern(globEscape(text))
	}
	return meaning{pattern: text}, checkPattern(text)
}

// Pattern returns the pattern for what an operator means: the name of a file or directory that
// is there, even if it looks like a pattern, or a pattern.
func (k *Keeper) Pattern(text string) string {
	m, err := k.meaningOf(text)
	if err != nil {
		return text // which is refused where it is used
	}
	return m.pattern
}

// isThere reports whether there is an entry of that path.
func (k *Keeper) isThere(at string) bool {
	if at == "." {
		return true
	}
	d, err := k.inv.Find(path.Dir(at))
	if err != nil {
		return false
	}
	_, err = k.inv.Stat(d, path.Base(at))
	return err == nil
}

// matching calls fn with the files that operators mean, directory by directory in the order of their
// paths, until fn returns an error, which it returns. ENOENT: there is nothing of that name; a
// pattern may match nothing.
func (k *Keeper) matching(ctx context.Context, text string, fn func(place, found) error) error {
	m, err := k.meaningOf(text)
	if err != nil {
		return err
	}
	top := below(m.pattern)
	if m.plain {
		top = m.path
	}
	d, at, err := k.find(top)
	if m.plain && errors.Is(err, unix.ENOTDIR) {
		return k.single(m.path, fn)
	}
	if err != nil {
		return err
	}
	for _, p := range k.placesBelow(d, at, anyDepth) {
		whole := covers(m.pattern, p.path)
		if !whole && !mayHold(m.pattern, p.path) {
			continue
		}
		var failed error
		err := k.names(ctx, p, func(f found) bool {
			if whole || covers(m.pattern, f.path) {
				failed = fn(p, f)
			}
			return failed == nil
		})
		switch {
		case failed != nil:
			return failed
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && p.dir == d && !errors.Is(err, unix.ENOENT):
			return err // those below are counted and logged by the scan
		}
	}
	return nil
}

// single calls fn with one file.
func (k *Keeper) single(at string, fn func(place, found) error) error {
	d, dir, err := k.find(path.Dir(at))
	if err != nil {
		return err
	}
	name := path.Base(at)
	stat := func() (inventory.Info, error) { return k.inv.Stat(d, name) }
	f, ok := k.lookAt(name, at, 0, false, stat)
	if !ok {
		return &notRegular{at}
	}
	return fn(place{d, dir}, f)
}

// notRegular is the error of a path that is neither that of a file nor of a directory.
type notRegular struct{ path string }

func (e *notRegular) Error() string {
	return "\"" + e.path + "\" is neither a file nor a directory, so the keeper neither counts nor removes it"
}

// mayHold reports whether something below a directory may match a pattern that does not match
// the directory.
func mayHold(pattern, dir string) bool {
	if dir == "." {
		return true
	}
	deep := strings.Count(dir, "/") + 1
	parts := strings.SplitN(pattern, "/", deep+1)
	if len(parts) <= deep {
		return false
	}
	ok, _ := path.Match(strings.Join(parts[:deep], "/"), dir)
	return ok
}
