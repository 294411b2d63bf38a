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
	// dataTimeout is for calls that a file system answers from memory.
	dataTimeout = 5 * time.Second

	littleSpaceShare  = 0.05
	littleInodesShare = 0.05
)

// networkTypes lists network file systems by the kernel's names.
var networkTypes = [...]string{"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "9p", "afs", "wekafs"}

// dataFacts describes the file system of the data directory.
type dataFacts struct {
	Canonical string
	Err       probeError
	SizeBytes int64
	FreeBytes int64  // to users other than root
	Inodes    uint64 // 0 where the file system does not count them
	FreeNodes uint64
	ReadOnly  bool
	Lock      string // chattr's letter for what forbids new files in it: i or a; "" for nothing
	Sparse    bool   // refuses fallocate, so files that a client reserves are sparse
}

func probeData(dir string) (f dataFacts) {
	var err error
	if f.Canonical, err = filepath.EvalSymlinks(dir); err != nil {
		f.Err = probeErrorOf(err)
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
		f.Err = probeErrorOf(err)
		return f
	}
	f.SizeBytes, f.FreeBytes = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	f.Inodes, f.FreeNodes = st.Files, st.Ffree
	f.ReadOnly = st.Flags&unix.ST_RDONLY != 0
	f.Sparse = refusesFallocate(f.Canonical)
	f.Lock = lockOf(f.Canonical)
	return f
}

// lockOf returns the letter of the attribute that keeps even root from making files in a
// directory and removing them: i, immutable; a, append-only; "" for neither.
func lockOf(dir string) string {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir, 0, 0, &st) != nil {
		return "" // a file system without such attributes
	}
	switch {
	case st.Attributes&unix.STATX_ATTR_IMMUTABLE != 0:
		return "i"
	case st.Attributes&unix.STATX_ATTR_APPEND != 0:
		return "a"
	}
	return ""
}

// refusesFallocate reports whether a file system cannot reserve space. It is false where
// this user may not create a file to ask with.
func refusesFallocate(dir string) bool {
	f, _, err := scratchFile(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Fallocate(int(f.Fd()), 0, 0, 1), unix.EOPNOTSUPP)
}

// probeHeld returns how many bytes the files of a directory whose names match a pattern
// occupy.
func probeHeld(dir, pattern string) (bytes int64, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	for _, entry := range entries {
		var st unix.Stat_t
		if ok, _ := filepath.Match(pattern, entry.Name()); ok && unix.Lstat(filepath.Join(dir, entry.Name()), &st) == nil {
			bytes += st.Blocks * 512
		}
	}
	return bytes, err
}

// checkData examines the data directory and measures its disk.
func checkData(ctx context.Context, o *Options, e *engine, dir string) []Finding {
	const id = "data"
	if dir == "" {
		return []Finding{{ID: id, Status: Note, Found: "the data directory is not known: no daemon reports it", Needed: "its path, to examine its disk", Fix: "kv3fs doctor --data /var/lib/kv3fs"}}
	}
	facts, err := runProbe[dataFacts](ctx, o, dataTimeout, "data", dir)
	switch {
	case errors.Is(err, errNoAnswer):
		return []Finding{{ID: id, Status: Failure, Found: fmt.Sprintf("%s does not answer within %v: its disk or file server hangs", dir, dataTimeout),
			Needed: "a disk that answers", Fix: "dmesg | tail   # the disk's errors"}}
	case err != nil:
		return []Finding{unknown(id, "what is at "+dir, err)}
	case facts.Err.failed():
		return []Finding{{ID: id, Status: Failure, Found: facts.Err.Text, Needed: "a directory that this user may read; kv3fs serve creates a missing one"}}
	}
	mounts, err := o.Host.Mounts()
	if err != nil {
		return []Finding{unknown(id, "the file system of "+dir, err)}
	}
	if paths := e.paths(); len(paths) > 0 && e.need.DiskFiles != "" {
		// If the mount does not answer, another finding says so.
		e.held, _ = runProbe[int64](ctx, o, mountTimeout, "held", paths[0], e.need.DiskFiles)
	}
	m, _ := host.Holding(mounts, facts.Canonical)
	all := []Finding{judgeFileSystem(facts.Canonical, m), judgeAtime(m), judgeSpace(facts, e, o.Engine)}
	if facts.Lock != "" {
		all = append(all, judgeLock(facts))
	}
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
		f.Status, f.Needed = Failure, "another directory: this one is itself on a 3FS"
	case m.HasOption("ro"):
		f.Status, f.Needed, f.Fix = Failure, "a writable file system", "mount -o remount,rw "+quote(m.Point)
	case m.Type == "tmpfs" || m.Type == "ramfs":
		f.Status, f.Needed = Note, "nothing, if a reboot may lose the cache: this file system is in memory, which it shares with /dev/shm"
	case m.Type == "overlay":
		f.Status, f.Needed = Warning, "a volume: a container's own layer is slow and disappears with the container"
		f.Fix = "docker run -v /HOST/DIR:" + quote(dir) + " ...   # Kubernetes: a hostPath or persistentVolumeClaim"
	case slices.Contains(networkTypes[:], m.Type) || m.Type == "fuse" || strings.HasPrefix(m.Type, "fuse."):
		f.Status, f.Needed = Note, "a server that answers within kv3fs's --deadline (5 s); a local disk is faster"
	}
	return f
}

// judgeLock judges a data directory in which not even root may make files.
func judgeLock(d dataFacts) Finding {
	found := map[string]string{"i": "is immutable: nobody can create, rename or remove files in it", "a": "is append-only: nobody can rename or remove files in it"}
	return Finding{ID: "data.lock", Status: Failure, Found: d.Canonical + " " + found[d.Lock] + ", not even root",
		Needed: "a directory without that attribute", Fix: fmt.Sprintf("chattr -%s %s", d.Lock, quote(d.Canonical))}
}

// judgeAtime judges whether files can be evicted by access time.
func judgeAtime(m host.Mount) Finding {
	f := Finding{ID: "data.atime"}
	switch {
	case m.HasOption("noatime"):
		f.Status, f.Found = Note, "noatime: reads do not change access times"
	case m.HasOption("relatime"):
		f.Status, f.Found = Note, "relatime: a file's access time may be a day behind its last read"
	default:
		f.Found = "access times are exact"
		return f
	}
	f.Needed = "nothing, unless you evict by access time: then use the modification time, or mount with strictatime"
	return f
}

// judgeSpace compares the free space with the size that an engine's files may reach, or
// with the share that a file system should keep free.
func judgeSpace(d dataFacts, e *engine, name string) Finding {
	f := Finding{ID: "data.space", Found: fmt.Sprintf("%s of %s free", bytesText(d.FreeBytes), bytesText(d.SizeBytes))}
	promised, reserved := e.diskBytes()
	more := promised
	if reserved {
		more -= e.held
	}
	switch {
	case d.FreeBytes == 0:
		f.Status, f.Needed = Failure, "free space: every write fails with ENOSPC"
	case more > d.FreeBytes:
		f.Status, f.Needed = Warning, bytesDistinct(more, d.FreeBytes)+" free for the files of "+e.title
		switch {
		case !reserved:
			f.Needed += " once they are full, less what they hold already"
		case d.Sparse:
			f.Needed += "; this file system cannot reserve space, so they are sparse, and writes fail once the disk is full"
		case e.config == nil:
			f.Needed += ", which it reserves in full when it starts, less what they hold already"
		default:
			f.Status = Failure
			f.Needed += fmt.Sprintf(", which it reserves in full when it starts (%s, of which they hold %s)", bytesText(promised), bytesText(e.held))
		}
		f.Needed += "; or smaller files"
		return f
	case float64(d.FreeBytes) < littleSpaceShare*float64(d.SizeBytes):
		f.Status, f.Needed = Warning, fmt.Sprintf("%d %% free: full file systems are slow, and kv3fs does not evict", int(math.Round(100*littleSpaceShare)))
	default:
		return f
	}
	dir := quote(d.Canonical)
	f.Fix = "du -xh " + dir + " | sort -h | tail   # docs/spec/clients.md, 15, says what can be deleted for each engine"
	if name == engineconfig.LMCache {
		// Mooncake's shard files have the same suffix and hold all its data.
		f.Fix = "find " + dir + " -name '*.data' ! -name 'dfs_shard_*' -mtime +7 -delete   # LMCache's chunks, a week old"
	}
	return f
}

func judgeInodes(d dataFacts) Finding {
	f := Finding{ID: "data.inodes", Found: fmt.Sprintf("%d of %d free", d.FreeNodes, d.Inodes)}
	if float64(d.FreeNodes) < littleInodesShare*float64(d.Inodes) {
		f.Status, f.Needed = Warning, "more free inodes: every new file takes one; LMCache makes a file for each chunk"
		f.Fix = "df -i   # fewer, larger files, or a file system without such a limit: xfs, btrfs"
		if d.FreeNodes == 0 {
			f.Status = Failure
		}
	}
	return f
}
