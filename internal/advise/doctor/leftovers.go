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

// youngest is how old an object must be before it can be a leftover: whoever
// makes one opens it, registers it and hands it over within moments.
const youngest = time.Minute

// leavers are beginnings of the names that 3FS's daemons and clients give to
// objects in /dev/shm.
var leavers = [...]string{"sem." + ringserver.SemPrefix, memory.NamePrefix, "hf3fs-iov-", "3FSClient_", "nixl_hf3fs."}

// muchLeft is from where leftovers cost something; semaphores are 4 KiB each.
const muchLeft = 1 << 20

// anyPython begins the name of shared memory of any Python program. Engines use
// it for buffers, and so does everybody else: it is counted and never touched.
const anyPython = "psm_"

// object is something in /dev/shm that may be a leftover.
type object struct {
	path  string
	bytes int64 // of memory
	use   use
	why   error // of useUnknown
}

// use says whether any process has an object open or mapped.
type use int

const (
	unused use = iota
	used
	useUnknown
)

// checkLeftovers finds, and with fix removes, what dead daemons and clients have
// left in a directory of shared memory.
func checkLeftovers(dir string, euid int, now time.Time, fix bool) []Finding {
	const id = "shm.leftovers"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []Finding{unknown(id, "what is in "+dir, err)}
	}
	var left, unclear []object
	pythons := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), anyPython) {
			pythons++
		}
		if !e.Type().IsRegular() || !slices.ContainsFunc(leavers[:], func(prefix string) bool { return strings.HasPrefix(e.Name(), prefix) }) {
			continue
		}
		switch x := inspect(filepath.Join(dir, e.Name()), now, fix); x.use {
		case unused:
			left = append(left, x)
		case useUnknown:
			unclear = append(unclear, x)
		}
	}
	all := []Finding{judgeLeft(dir, left, fix)}
	if len(unclear) > 0 {
		f := Finding{ID: "shm.unclear", Status: Note,
			Found:  fmt.Sprintf("of %d objects in %s it cannot be told whether anybody uses them: %s: %v", len(unclear), dir, shown(filepath.Base(unclear[0].path)), unclear[0].why),
			Needed: "an answer of the kernel; they are left alone"}
		if euid != 0 {
			f.Needed = "their owner's rights, or root's, to ask the kernel; they are left alone"
			f.Fix = "sudo kv3fs doctor"
		}
		all = append(all, f)
	}
	if pythons > 0 {
		all = append(all, Finding{ID: "shm.python", Status: Note, Found: fmt.Sprintf("%d %s* objects in %s: shared memory of Python programs", pythons, anyPython, dir),
			Needed: "nothing, if these run; the doctor never removes them, whoever's they are"})
	}
	return all
}

func judgeLeft(dir string, left []object, fix bool) Finding {
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
		f.Found = "nothing in " + dir + " is left over from dead daemons and clients"
	case fix:
		f.Found = fmt.Sprintf("removed %s, which nothing used: %s", objects(len(left), total), strings.Join(names, ", "))
	default:
		f.Status = Note
		if total >= muchLeft {
			f.Status = Warning
		}
		f.Found = fmt.Sprintf("%s in %s that no process uses: %s", objects(len(left), total), dir, list)
		f.Needed = "the memory they take; whoever made them is dead"
		f.Fix = "kv3fs doctor --fix"
	}
	return f
}

// shown is a name that anybody may have chosen, safe to print on a terminal.
func shown(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

func objects(n int, totalBytes int64) string {
	return fmt.Sprintf("%s (%s)", plural(n, "object"), bytesText(totalBytes))
}

// inspect looks at one object. With remove, one that is unused is gone
// afterwards; one that vanishes meanwhile counts as used.
//
// The kernel is asked for a write lease, which it grants if nobody else has the
// file open. Unlike a search of /proc that knows of processes in other
// namespaces and of other users, of mappings, and of descriptors in flight, and
// while the lease is held nobody can open the object behind our back.
func inspect(path string, now time.Time, remove bool) object {
	x := object{path: path, use: used}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return x.unknown(err)
	}
	defer unix.Close(fd) // ends the lease, too
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return x.unknown(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || now.Sub(time.Unix(st.Mtim.Unix())) < youngest {
		return x
	}
	x.bytes = st.Blocks * 512
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); errors.Is(err, syscall.EAGAIN) {
		return x
	} else if err != nil {
		return x.unknown(err)
	}
	if remove {
		// The name may be another object's by now. Unlink, unlike os.Remove, takes
		// no directory either.
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

func (x object) unknown(err error) object {
	if !errors.Is(err, fs.ErrNotExist) {
		x.use, x.why = useUnknown, err
	}
	return x
}
