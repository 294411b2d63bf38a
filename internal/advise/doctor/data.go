package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/host"
)

const (
	// dataPatience is for what a disk answers from memory.
	dataPatience = 5 * time.Second

	littleSpaceShare  = 0.05
	littleInodesShare = 0.05
)

// network file systems, as the kernel calls them.
var network = []string{"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "9p", "afs", "wekafs"}

// dataFacts are what the data directory's file system says.
type dataFacts struct {
	Canonical string  `json:"canonical"`
	Look      trouble `json:"look"`
	SizeBytes int64   `json:"size_bytes"`
	FreeBytes int64   `json:"free_bytes"` // for users
	Inodes    uint64  `json:"inodes"`     // 0 where the file system does not count them
	FreeNodes uint64  `json:"free_inodes"`
	ReadOnly  bool    `json:"read_only"`
}

func probeData(dir string) (f dataFacts) {
	var err error
	if f.Canonical, err = filepath.EvalSymlinks(dir); err != nil {
		f.Look = troubleOf(err)
		return f
	}
	info, err := os.Stat(f.Canonical)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(f.Canonical, &st)
	}
	if err != nil {
		f.Look = troubleOf(err)
		return f
	}
	f.SizeBytes, f.FreeBytes = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	f.Inodes, f.FreeNodes = st.Files, st.Ffree
	f.ReadOnly = st.Flags&unix.ST_RDONLY != 0
	return f
}

// checkData looks at the data directory and measures its disk.
func checkData(ctx context.Context, o *Options, e *engine, dir string) []Finding {
	const id = "data"
	if dir == "" {
		return []Finding{{ID: id, Status: Note, Found: "not known: no daemon says it", Needed: "its name, to look at its disk", Fix: "kv3fs doctor --data /var/lib/kv3fs"}}
	}
	facts, err := ask[dataFacts](ctx, o, dataPatience, "data", dir)
	switch {
	case errors.Is(err, errHung):
		return []Finding{{ID: id, Status: Failure, Found: fmt.Sprintf("%s does not answer within %v: its disk or file server hangs", dir, dataPatience),
			Needed: "a disk that answers", Fix: "dmesg | tail   # what the disk says"}}
	case err != nil:
		return []Finding{unknown(id, "what is at "+dir, err)}
	case facts.Look.any():
		return []Finding{{ID: id, Status: Failure, Found: facts.Look.Text, Needed: "a directory that this user may look into; kv3fs serve makes it if it is missing"}}
	}
	mounts, err := o.Host.Mounts()
	if err != nil {
		return []Finding{unknown(id, "the file system of "+dir, err)}
	}
	m, _ := host.Holding(mounts, facts.Canonical)
	all := []Finding{judgeFileSystem(facts.Canonical, m), judgeAtime(m), judgeSpace(facts, e, o.Engine)}
	if facts.Inodes > 0 {
		all = append(all, judgeInodes(facts))
	}
	if o.NoBandwidth || facts.ReadOnly {
		return all
	}
	return append(all, checkDisk(ctx, o, facts.Canonical))
}

func judgeFileSystem(dir string, m host.Mount) Finding {
	f := Finding{ID: "data", Found: fmt.Sprintf("%s is on %s (%s, mounted at %s)", dir, m.Type, m.Source, m.Point)}
	switch {
	case m.Type == host.HF3FSType:
		f.Status, f.Needed = Failure, "another directory: this is itself on a 3FS"
	case m.HasOption("ro"):
		f.Status, f.Needed, f.Fix = Failure, "a file system that can be written to", "mount -o remount,rw "+quote(m.Point)
	case m.Type == "tmpfs" || m.Type == "ramfs":
		f.Status, f.Needed = Note, "nothing, if the cache may be lost at a reboot: this is memory, and competes with /dev/shm for it"
	case m.Type == "overlay":
		f.Status, f.Needed = Warning, "a volume: a container's own layer is slow, has no passthrough, and goes with the container"
		f.Fix = "docker run -v /HOST/DIR:" + quote(dir) + " ...   # Kubernetes: a hostPath or persistentVolumeClaim"
	case slices.Contains(network, m.Type) || m.Type == "fuse" || strings.HasPrefix(m.Type, "fuse."):
		f.Status, f.Needed = Note, "a server that answers within kv3fs's --deadline (5 s); a local disk is faster"
	}
	return f
}

// judgeAtime is for those who evict by age.
func judgeAtime(m host.Mount) Finding {
	f := Finding{ID: "data.atime"}
	switch {
	case m.HasOption("noatime"):
		f.Status, f.Found = Note, "noatime: reads leave no trace"
	case m.HasOption("relatime"):
		f.Status, f.Found = Note, "relatime: a file's access time may be a day behind its last read"
	default:
		f.Found = "access times are kept"
		return f
	}
	f.Needed = "nothing, unless something evicts by access time: take the modification time then, or strictatime"
	return f
}

// judgeSpace compares the space with what an engine's files may grow to, or with
// what file systems want.
func judgeSpace(d dataFacts, e *engine, name string) Finding {
	f := Finding{ID: "data.space", Found: fmt.Sprintf("%s of %s free", bytesText(d.FreeBytes), bytesText(d.SizeBytes))}
	promised, reserved := e.diskBytes()
	switch {
	case d.FreeBytes == 0:
		f.Status, f.Needed = Failure, "space: every write fails with ENOSPC"
	case reserved && promised > d.SizeBytes:
		f.Status, f.Needed = Failure, bytesUnlike(promised, d.SizeBytes)+" for the files that "+e.title+" reserves in full when it starts; or smaller ones"
		return f
	case reserved && promised > d.FreeBytes:
		f.Status, f.Needed = Warning, bytesUnlike(promised, d.FreeBytes)+" free for the files that "+e.title+" reserves in full when it starts, unless they are there already; or smaller ones"
		return f
	case promised > d.FreeBytes:
		f.Status, f.Needed = Warning, bytesUnlike(promised, d.FreeBytes)+" free for the files of "+e.title+" once they have filled, less what they hold already; or smaller ones"
		return f
	case float64(d.FreeBytes) < littleSpaceShare*float64(d.SizeBytes):
		f.Status, f.Needed = Warning, fmt.Sprintf("%d %% free: file systems slow down when full, and kv3fs does not evict", int(math.Round(100*littleSpaceShare)))
	default:
		return f
	}
	f.Fix = "du -xh DATA | sort -h | tail   # what each engine can spare: docs/spec/clients.md, 15"
	if name == engineconfig.LMCache {
		// Mooncake's shards have that ending, too, and all its data is in them.
		f.Fix = "find DATA -name '*.data' ! -name 'dfs_shard_*' -mtime +7 -delete   # LMCache's chunks, a week old"
	}
	return f
}

func judgeInodes(d dataFacts) Finding {
	f := Finding{ID: "data.inodes", Found: fmt.Sprintf("%d of %d free", d.FreeNodes, d.Inodes)}
	if float64(d.FreeNodes) < littleInodesShare*float64(d.Inodes) {
		f.Status, f.Needed = Warning, "more: without a free inode no file can be made, however much space there is; LMCache makes one a chunk"
		f.Fix = "df -i   # fewer, larger files, or a file system without such a limit: xfs, btrfs"
		if d.FreeNodes == 0 {
			f.Status = Failure
		}
	}
	return f
}
