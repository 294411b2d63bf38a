package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// minLeftoverAge is how old an object must be to count as a leftover. A younger one may
// not yet be open or registered by its creator.
const minLeftoverAge = time.Minute

// semPrefix begins the names of a daemon's semaphores. Only their user can open them.
const semPrefix = "sem." + ringserver.SemPrefix

// leftoverPrefixes begin the names that 3FS daemons and clients give to objects in
// /dev/shm.
var leftoverPrefixes = [...]string{semPrefix, memory.NamePrefix, "hf3fs-iov-", "3FSClient_", "nixl_hf3fs."}

// muchMemory is the total size from which leftovers are a warning; a semaphore has 4 KiB.
const muchMemory = 1 << 20

// pythonPrefix begins the names of the shared memory of Python programs, including
// engines. Such objects are counted but never touched.
const pythonPrefix = "psm_"

// object is something in /dev/shm that may be a leftover.
type object struct {
	path  string
	bytes int64 // of memory
	use   use
	err   error // why use is useUnknown
}

// use reports whether any process has an object open or mapped.
type use int

const (
	unused use = iota
	used
	useUnknown
)

// checkLeftovers finds what dead daemons and clients left in a directory of shared
// memory, and removes it if fix is set.
func checkLeftovers(dir string, euid int, now time.Time, fix bool) []Finding {
	const id = "shm.leftovers"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []Finding{unknown(id, "what is in "+dir, err)}
	}
	var left, unclear []object
	pythons := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), pythonPrefix) {
			pythons++
		}
		if !e.Type().IsRegular() || !slices.ContainsFunc(leftoverPrefixes[:], func(prefix string) bool { return strings.HasPrefix(e.Name(), prefix) }) {
			continue
		}
		switch x := inspect(filepath.Join(dir, e.Name()), now, fix); x.use {
		case unused:
			left = append(left, x)
		case useUnknown:
			if strings.HasPrefix(e.Name(), semPrefix) && errors.Is(x.err, fs.ErrPermission) {
				continue // of another user: each user with rings has some
			}
			unclear = append(unclear, x)
		}
	}
	all := []Finding{judgeLeftovers(dir, left, fix)}
	if len(unclear) > 0 {
		f := Finding{ID: "shm.unclear", Status: Note,
			Found:  fmt.Sprintf("cannot determine whether a process uses %s in %s: %s: %v", plural(len(unclear), "object"), dir, shown(filepath.Base(unclear[0].path)), unclear[0].err),
			Needed: "a kernel that grants leases on them; nothing was removed"}
		if euid != 0 {
			f.Needed = "the rights of their owner or of root; nothing was removed"
			f.Fix = "sudo kv3fs doctor"
		}
		all = append(all, f)
	}
	if pythons > 0 {
		all = append(all, Finding{ID: "shm.python", Status: Note, Found: fmt.Sprintf("%d %s* objects in %s: shared memory of Python programs", pythons, pythonPrefix, dir),
			Needed: "nothing, if these programs run; the doctor never removes such objects"})
	}
	return all
}

func judgeLeftovers(dir string, left []object, fix bool) Finding {
	f := Finding{ID: "shm.leftovers"}
	var total int64
	var names []string
	for _, x := range left {
		total += x.bytes
		names = append(names, shown(filepath.Base(x.path)))
	}
	const most = 4
	list := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most && !fix {
		list += ", ..."
	}
	switch {
	case len(left) == 0:
		f.Found = "no leftovers of dead daemons and clients in " + dir
	case fix:
		f.Found = fmt.Sprintf("removed %s that no process used: %s", objects(len(left), total), strings.Join(names, ", "))
	default:
		f.Status = Note
		if total >= muchMemory {
			f.Status = Warning
		}
		f.Found = fmt.Sprintf("%s in %s that no process uses: %s", objects(len(left), total), dir, list)
		f.Needed = "nothing, but they occupy memory; the processes that made them are dead"
		f.Fix = "kv3fs doctor --fix"
	}
	return f
}

// shown returns a name, which any user may have chosen, in a form that is safe to print
// on a terminal.
func shown(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

func objects(n int, totalBytes int64) string {
	return fmt.Sprintf("%s (%s)", plural(n, "object"), bytesText(totalBytes))
}

// inspect finds out whether a process uses an object, and removes an unused one if
// remove is set. An object that vanishes meanwhile counts as used.
//
// It asks the kernel for a write lease, which is granted only if no other process has
// the file open. Unlike a search of /proc, this covers mappings, descriptors in flight,
// and processes of other users and in other namespaces. While the lease is held, no
// process can open the object.
func inspect(path string, now time.Time, remove bool) object {
	x := object{path: path, use: used}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return x.unknown(err)
	}
	defer unix.Close(fd) // also ends the lease
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return x.unknown(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || now.Sub(time.Unix(st.Mtim.Unix())) < minLeftoverAge {
		return x
	}
	x.bytes = st.Blocks * 512
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); errors.Is(err, syscall.EAGAIN) {
		return x
	} else if err != nil {
		return x.unknown(err)
	}
	if remove {
		// The name may belong to another object by now. Unlink, unlike os.Remove,
		// removes no directory.
		var named unix.Stat_t
		if err := unix.Lstat(path, &named); err != nil {
			return x.unknown(err)
		}
		if named.Ino != st.Ino || named.Dev != st.Dev {
			return x
		}
		if err := unix.Unlink(path); err != nil {
			return x.unknown(err)
		}
	}
	x.use = unused
	return x
}

// unknown returns the object with the error that hides its use.
func (x object) unknown(err error) object {
	if !errors.Is(err, fs.ErrNotExist) {
		x.use, x.err = useUnknown, err
	}
	return x
}
