package fuseserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/wire"
)

const (
	fsType      = "fuse.hf3fs"
	subtype     = "hf3fs"
	maxIOBytes  = 1 << 20
	statfsBlock = 2 << 20
	limitBlock  = 4 << 10
	// The client library has room for 32 bytes, including the NUL.
	longestCluster = 31
)

// Passthrough chooses how file bytes travel.
type Passthrough int

const (
	// PassthroughAuto lets the kernel read, write and map the backing file itself
	// where it can: Linux 6.9 or later, and root.
	PassthroughAuto Passthrough = iota
	// PassthroughOff sends every read and write through the daemon. Clients cannot map
	// files with MAP_SHARED: ENODEV.
	PassthroughOff
	// PassthroughShared is PassthroughOff because other hosts change the files: the kernel would
	// serve what its page cache has.
	PassthroughShared
)

// Options configure New. Cluster is required; the zero value of the rest is valid.
type Options struct {
	// Cluster names the file system: the mount's source is hf3fs.<Cluster>.
	// 1 to 31 bytes of letters, digits, '.', '_' and '-'.
	Cluster string

	// AllowOther lets users other than the daemon's use the mount. Without it
	// their processes get EACCES. It is always on for root; another daemon user needs
	// user_allow_other in /etc/fuse.conf.
	AllowOther bool

	// Passthrough is for tests and for kernels whose passthrough misbehaves.
	Passthrough Passthrough

	// BlockBytes is st_blksize, the alignment of the punch-hole ioctl.
	// Default 1 MiB; a power of two.
	BlockBytes uint32

	Limits Limits

	// Daemon is the value of the root's attribute wire.DaemonXattr; the mount fills in
	// Passthrough. nil: there is no such attribute.
	Daemon *wire.Daemon

	// Health is the file system under the tree. nil: nobody looks after it.
	Health *health.Store
	// Deadline is how long a request may take, or each step of a removal of many files; then it is answered with EIO. The wait
	// for room does not count while the file system under the tree answers. 0: requests wait.
	Deadline time.Duration

	// State is where is kept what a successor must know of the mount. The tree has the same. nil: there will be none.
	State *restart.Dir
	// Recalled is what clients of a predecessor have open, from Recall. nil: nothing was left.
	Recalled *Recalled
	// Adopt is the device of the mount that a predecessor has left. New closes it. If that mount cannot be taken over, its
	// clients are cut off and there is a new one. nil: there is a new one.
	Adopt *os.File

	// HeldBack says that the predecessor of Adopt had answered all that it had begun, as Mount.Gate reports: no request that comes
	// again was done.
	HeldBack bool

	// A test's: requests that come again are done again, and what is around all that answers requests.
	twice bool
	wrap  func(fuse.RawFileSystem) fuse.RawFileSystem

	// Log gets warnings. nil: slog.Default().
	Log *slog.Logger
}

// daemonValue returns the attribute of a mount that has no passthrough for that reason, for
// a caller that the daemon can see, or not.
func (o *Options) daemonValue(whyNot string, unseen bool) []byte {
	if o.Daemon == nil {
		return nil
	}
	d := *o.Daemon
	d.Unseen = unseen
	d.Passthrough = wire.PassthroughOn
	if whyNot != "" {
		d.Passthrough = whyNot
	}
	value, _ := json.Marshal(d) // strings and a number: cannot fail
	return value
}

// Check reports a name or a size that New refuses.
func (o Options) Check() error { return o.complete() }

func (o *Options) complete() error {
	if o.Cluster == "" || len(o.Cluster) > longestCluster {
		return fmt.Errorf("cluster name %q: has %d bytes: use 1 to %d", o.Cluster, len(o.Cluster), longestCluster)
	}
	for _, r := range o.Cluster {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
		if !ok {
			return fmt.Errorf("cluster name %q: has %q: use only letters, digits, '.', '_' and '-'", o.Cluster, r)
		}
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 1 << 20
	}
	if o.BlockBytes&(o.BlockBytes-1) != 0 {
		return fmt.Errorf("block size %d: is not a power of two", o.BlockBytes)
	}
	o.Limits.complete()
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return nil
}
