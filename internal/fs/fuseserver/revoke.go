package fuseserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// ErrCutOff says that clients still used the mount when the time for them to leave was over.
var ErrCutOff = errors.New("clients were cut off")

const (
	// holdersTime bounds the search for the processes that use the mount.
	holdersTime = time.Second
	// revokeTime bounds revoke: requests may hang.
	revokeTime = time.Second
)

// Reads and writes that take the kernel's own route do not ask the connection, and go on when
// it has ended: behind the back of the next daemon, which may be read-only. But the kernel
// fails all reads and writes of an inode for which it has seen an entry with another
// generation, since the number then stands for another file. So the daemon, before it ends the
// connection, looks up names of its own in the mount's root, and answers with these.
//
// Mappings stay: they are the backing file's. Users names them.

// revocation is what makes up the names.
type revocation struct{ prefix string }

func (r *revocation) name(node uint64) string { return r.prefix + strconv.FormatUint(node, 10) }

// answer fills in the entry of such a name, and reports whether it is one.
func (r *revocation) answer(name string, out *fuse.EntryOut) bool {
	digits, ok := strings.CutPrefix(name, r.prefix)
	node, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil {
		return false
	}
	*out = fuse.EntryOut{NodeId: node, Generation: 1, Attr: fuse.Attr{Ino: node, Mode: unix.S_IFREG, Nlink: 1}}
	return true
}

// revoke makes the kernel fail reads and writes of all files that are open with its route, and
// returns when that is so or revokeTime is over. From now on nothing can be opened. root is a
// descriptor of the mount's root.
func (m *Mount) revoke(root int) {
	r := &revocation{prefix: ".revoke-" + rand.Text() + "-"}
	m.fs.revocation.Store(r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen := map[uint64]bool{}
		for again := true; again; { // an open may have been on its way
			again = false
			for _, node := range m.fs.passthrough.openNodes() {
				if !seen[node] {
					seen[node], again = true, true
					var st unix.Statx_t
					_ = unix.Statx(root, r.name(node), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
				}
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(revokeTime):
	}
}

// root returns a descriptor for revoke: of a mount of its own, so that it does not keep this
// one busy. It keeps the connection, though. -1: there is no need, or no way.
func (m *Mount) root() int {
	if m.fs.passthrough.why != "" {
		return -1
	}
	at, err := m.look()
	if err != nil || at.gone || at.over != nil {
		return -1
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, at.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1
	}
	if m.hasEnded() { // and so it may be of another mount, which it would keep
		unix.Close(fd)
		return -1
	}
	return fd
}

// users describes who uses the mount, for people.
func (m *Mount) users() string {
	holders := m.holders()
	var all []string
	if len(holders.Processes) > 0 {
		all = append(all, "by "+holders.String())
	}
	names, unseen := m.fs.openFiles(holders.Files)
	for _, path := range holders.Files {
		if rel, ok := strings.CutPrefix(path, m.point+"/"); ok {
			names = append(names, strconv.Quote(rel))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > 0 {
		const most = 5
		more := ""
		if len(names) > most {
			more = fmt.Sprintf(" and %d more", len(names)-most)
		}
		all = append(all, "files: "+strings.Join(names[:min(len(names), most)], ", ")+more)
	}
	if unseen > 0 {
		all = append(all, fmt.Sprintf("%d of them by processes that cannot be seen from here", unseen))
	}
	return strings.Join(all, "; ")
}

// holders returns nobody once the connection has ended: by then they may be another mount's.
func (m *Mount) holders() host.Holders {
	found := host.Local().Holders(unix.Mkdev(0, uint32(m.minor)), holdersTime)
	if m.hasEnded() {
		return host.Holders{}
	}
	return found
}

// isMapped reports whether a process that can be seen has a file of the mount mapped.
func (m *Mount) isMapped() bool {
	return slices.ContainsFunc(m.holders().Processes, func(p host.Holder) bool { return p.Mapped > 0 })
}

// openFiles returns the names of the files that clients have open, and how many files are not
// among those that were seen.
func (fs *fileSystem) openFiles(seen map[uint64]string) (names []string, unseen int) {
	known := map[uint64]bool{}
	for _, o := range fs.handles.all() {
		if o.file == nil || known[o.file.Ino()] {
			continue // nobody can change anything through a directory
		}
		known[o.file.Ino()] = true
		if _, ok := seen[o.file.Ino()]; !ok {
			unseen++
		}
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(o.file.FD()))
		if err != nil {
			continue
		}
		if rel, err := filepath.Rel(fs.tree.Dir(), path); err == nil {
			path = rel
		}
		names = append(names, strconv.Quote(path))
	}
	return names, unseen
}
