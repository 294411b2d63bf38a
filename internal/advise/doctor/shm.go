package doctor

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// containerShmBytes is the default size of /dev/shm in containers.
const containerShmBytes = 64 << 20

// checkShm compares the size of /dev/shm with what an engine creates there. needBytes
// is 0 if it is not known.
func checkShm(h host.Host, needBytes int64, forWhat string) Finding {
	const id = "shm.size"
	hint := ""
	if forWhat == "" {
		hint = " (--engine says how much)"
	}
	var st unix.Statfs_t
	if err := h.Statfs(h.Path(shm.Dir), &st); err != nil {
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("%s: %v", shm.Dir, err),
			Needed: "a tmpfs: rings and buffers are shared memory", Fix: "mount -t tmpfs -o mode=1777 tmpfs " + shm.Dir}
	}
	sizeBytes, freeBytes := int64(math.MaxInt64), int64(math.MaxInt64)
	found := shm.Dir + " has no limit of its own"
	if st.Blocks != 0 {
		sizeBytes, freeBytes = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
		found = fmt.Sprintf("%s has %s, %s free", shm.Dir, bytesDistinct(sizeBytes, needBytes), bytesDistinct(freeBytes, needBytes))
	}
	f := Finding{ID: id, Found: found, Fix: shmFix(h, wanted(sizeBytes, freeBytes, needBytes))}
	memory, memoryErr := h.MemoryAvailableBytes()
	switch {
	case sizeBytes < needBytes:
		f.Status, f.Needed = Failure, fmt.Sprintf("%s for %s; a process that touches more is killed by SIGBUS", bytesDistinct(needBytes, sizeBytes), forWhat)
	case freeBytes < needBytes:
		f.Status, f.Needed = Warning, fmt.Sprintf("%s free for %s, unless it runs already and occupies the rest", bytesDistinct(needBytes, freeBytes), forWhat)
	case needBytes == 0 && sizeBytes <= containerShmBytes:
		f.Status, f.Needed = Warning, "more than the 64 MiB that containers get by default: every engine's buffers are larger"+hint
	case needBytes > 0 && memoryErr == nil && memory < needBytes:
		f.Status, f.Needed = Warning, fmt.Sprintf("%s of memory for %s: shared memory is memory, and only %s are available", bytesText(needBytes), forWhat, bytesText(memory))
		f.Fix = ""
	default:
		if needBytes > 0 {
			f.Found += fmt.Sprintf("; %s needs %s", forWhat, bytesText(needBytes))
		}
		f.Fix = ""
	}
	return f
}

// checkShmMemory compares the memory that a container may use with what it can have in
// /dev/shm: what is there counts against its limit. It returns nothing where there is no limit.
func checkShmMemory(h host.Host, needBytes int64, forWhat string) []Finding {
	const id = "shm.memory"
	limit, err := h.MemoryLimitBytes()
	switch {
	case needBytes == 0 || err == nil && limit == host.Unlimited:
		return nil
	case err != nil:
		return []Finding{unknown(id, "the memory limit of this container", err)}
	}
	var sizeBytes int64
	var st unix.Statfs_t
	if h.Statfs(h.Path(shm.Dir), &st) == nil {
		sizeBytes = int64(st.Blocks) * st.Bsize
	}
	f := Finding{ID: id, Found: "this container or unit may use " + bytesDistinct(limit, needBytes) + " of memory, and what it has in " + shm.Dir + " counts"}
	switch {
	case limit < needBytes:
		f.Status, f.Needed = Failure, fmt.Sprintf("more than %s: so much %s has in %s, besides its own memory", bytesDistinct(needBytes, limit), forWhat, shm.Dir)
	case limit < sizeBytes:
		f.Status, f.Needed = Warning, fmt.Sprintf("at least %s, the size of %s: whoever fills that is killed", bytesDistinct(sizeBytes, limit), shm.Dir)
	default:
		return []Finding{f}
	}
	gib := (max(needBytes, sizeBytes)-1)>>30 + 1
	f.Fix = fmt.Sprintf("resources: {limits: {memory: %dGi}}   # in the pod, and more for the engine; docker run --memory %dg", gib, gib)
	return []Finding{f}
}

// wanted returns the size at which /dev/shm holds its present content, needBytes, and an
// eighth more. It is never less than the present size.
func wanted(sizeBytes, freeBytes, needBytes int64) int64 {
	missing := max(needBytes-freeBytes, 0)
	missing += min(needBytes/8, math.MaxInt64-missing)
	return max(sizeBytes+min(missing, math.MaxInt64-sizeBytes), 1<<30)
}

func shmFix(h host.Host, wantBytes int64) string {
	gib := (wantBytes-1)>>30 + 1
	if h.InContainer() {
		return fmt.Sprintf("docker run --shm-size=%dg ...   # Kubernetes: an emptyDir of medium Memory at %s", gib, shm.Dir)
	}
	return fmt.Sprintf("mount -o remount,size=%dG %s   # and in /etc/fstab; existing objects stay", gib, shm.Dir)
}

func bytesText(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// bytesDistinct returns bytesText of n, or n to the byte if other, which the reader will
// compare with n, has the same text.
func bytesDistinct(n, other int64) string {
	if text := bytesText(n); n == other || text != bytesText(other) {
		return text
	}
	return humanize.Comma(n) + " bytes"
}
