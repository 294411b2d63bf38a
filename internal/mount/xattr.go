package mount

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// lockName is the only extended attribute: a directory's lock, held by a mount.
const lockName = "hf3fs.lock"

// dirLocks are the locks this mount holds on directories. Kept in memory: they
// end with the daemon, and other hosts do not see them.
type dirLocks struct {
	value []byte // what a locked directory shows

	mu     sync.Mutex
	locked map[uint64]bool // by node
}

func newDirLocks(cluster string) *dirLocks {
	host, _ := os.Hostname()
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		id = []byte(cluster + "-" + strconv.Itoa(os.Getpid()))
	}
	var v struct {
		Client struct {
			UUID     string `json:"uuid"`
			Hostname string `json:"hostname"`
		} `json:"client"`
	}
	v.Client.UUID, v.Client.Hostname = strings.TrimSpace(string(id)), host
	value, _ := json.Marshal(v) // two strings: cannot fail
	return &dirLocks{value: value, locked: make(map[uint64]bool)}
}

func (l *dirLocks) held(node uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked[node]
}

// set does what a client wrote to the attribute.
func (l *dirLocks) set(node uint64, action string) fuse.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch action {
	case "try_lock", "preempt_lock":
		l.locked[node] = true
	case "unlock":
		if !l.locked[node] {
			return fuse.Status(unix.ENOLCK)
		}
		delete(l.locked, node)
	case "clear":
		delete(l.locked, node)
	default:
		return fuse.EINVAL
	}
	return fuse.OK
}

func (fs *fileSystem) directory(node uint64) bool {
	e, err := fs.stage.Getattr(node, 0)
	return err == nil && e.Attr.Mode&unix.S_IFMT == unix.S_IFDIR
}

func (fs *fileSystem) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	switch {
	case wire.IsVirtual(h.NodeId):
		return 0, fuse.ENOTSUP
	case name != lockName || !fs.locks.held(h.NodeId):
		return 0, fuse.ENODATA
	}
	return fit(fs.locks.value, dest)
}

func (fs *fileSystem) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	switch {
	case wire.IsVirtual(h.NodeId):
		return 0, fuse.ENOTSUP
	case !fs.locks.held(h.NodeId):
		return 0, fuse.OK
	}
	return fit([]byte(lockName+"\x00"), dest)
}

// fit copies value; ERANGE and its size when dest is short, or is no more than a
// question.
func fit(value, dest []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (fs *fileSystem) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	switch {
	case wire.IsVirtual(in.NodeId) || name != lockName || !fs.directory(in.NodeId):
		return fuse.ENOTSUP
	case fs.readonly(&in.InHeader):
		return fuse.EROFS
	}
	return fs.locks.set(in.NodeId, string(value))
}

func (fs *fileSystem) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	switch {
	case wire.IsVirtual(h.NodeId) || name != lockName:
		return fuse.EPERM
	case fs.readonly(h):
		return fuse.EROFS
	case !fs.directory(h.NodeId):
		return fuse.ENOTDIR
	}
	return fs.locks.set(h.NodeId, "clear")
}
