package doctor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

const (
	diskPhase      = time.Second // once writing, once reading
	diskTimeout    = 2*diskPhase + 4*time.Second
	diskThreads    = 4
	diskBlockBytes = 1 << 20
	// The measurement occupies at most maxDiskBytes, and at most the free space divided
	// by maxDiskShare.
	maxDiskBytes = 1 << 30
	maxDiskShare = 10

	slowBytesPerSecond = 200e6
)

// diskFacts holds what the measurement found.
type diskFacts struct {
	Err    probeError
	Direct bool // bypassed the page cache
	Write  float64
	Read   float64
}

func checkDisk(ctx context.Context, o *Options, dir string) Finding {
	const id = "data.bandwidth"
	facts, err := runProbe[diskFacts](ctx, o, diskTimeout, "disk", dir)
	switch {
	case errors.Is(err, errNoAnswer):
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("a measurement of two seconds was not finished after %v", diskTimeout),
			Needed: "a disk that answers", Fix: "dmesg | tail   # the disk's errors"}
	case err != nil:
		return unknown(id, "how fast the disk is", err)
	}
	return judgeDisk(facts)
}

func judgeDisk(d diskFacts) Finding {
	const id = "data.bandwidth"
	switch {
	case d.Err.is(syscall.EACCES, syscall.EPERM, syscall.EROFS):
		return Finding{ID: id, Status: Note, Found: "not measured: " + d.Err.Text, Needed: "a user who may write there, or root"}
	case d.Err.is(syscall.ENOSPC):
		return Finding{ID: id, Status: Note, Found: "not measured: there is too little space", Needed: "ten times as much free space as the measurement takes"}
	case d.Err.failed():
		return Finding{ID: id, Status: Failure, Found: d.Err.Text, Needed: "a disk that reads and writes"}
	}
	f := ok(id, "writes %s, reads %s (1 MiB blocks, %d threads", rateText(d.Write), rateText(d.Read), diskThreads)
	if d.Direct {
		f.Found += ", direct I/O)"
	} else {
		f.Found += "; no direct I/O here, so reads come from memory)"
	}
	if min(d.Read, d.Write) < slowBytesPerSecond {
		f.Status = Note
		f.Needed = "it depends: loading KV cache pays off if it is faster than computing it, usually from 1 GB/s on"
	}
	return f
}

func rateText(bytesPerSecond float64) string {
	if bytesPerSecond >= 1e9 {
		return fmt.Sprintf("%.1f GB/s", bytesPerSecond/1e9)
	}
	return fmt.Sprintf("%.0f MB/s", bytesPerSecond/1e6)
}

// probeDisk measures the disk with a file that it unlinks before writing to it.
func probeDisk(data string) (facts diskFacts) {
	f, direct, err := scratchFile(data)
	if err != nil {
		return diskFacts{Err: probeErrorOf(err)}
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return diskFacts{Err: probeErrorOf(err)}
	}
	blocks := min(int64(st.Bavail)*st.Bsize/maxDiskShare, maxDiskBytes) / diskBlockBytes / diskThreads
	if blocks == 0 {
		return diskFacts{Err: probeErrorOf(fmt.Errorf("%s: %w", data, syscall.ENOSPC))}
	}
	facts.Direct = direct
	written := make([]int64, diskThreads) // blocks of each thread's part
	facts.Write, err = phase(func(thread int, block int64, buf []byte) (int, error) {
		at := block % blocks
		written[thread] = max(written[thread], at+1)
		return f.WriteAt(buf, (int64(thread)*blocks+at)*diskBlockBytes)
	})
	if err == nil {
		facts.Read, err = phase(func(thread int, block int64, buf []byte) (int, error) {
			return f.ReadAt(buf, (int64(thread)*blocks+block%written[thread])*diskBlockBytes)
		})
	}
	facts.Err = probeErrorOf(err)
	return facts
}

// scratchFile returns an unlinked file, in kv3fs's own directory if this user may
// write there, else in the data directory. Where direct I/O is not possible, O_DSYNC
// makes each write wait for the disk.
func scratchFile(data string) (f *os.File, direct bool, err error) {
	for _, dir := range []string{filepath.Join(data, tree.StateName), data} {
		name := filepath.Join(dir, ".kv3fs-doctor-"+strconv.Itoa(os.Getpid()))
		for _, flag := range []int{unix.O_DIRECT, unix.O_DSYNC} {
			f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|flag, 0o600)
			if err == nil || errors.Is(err, syscall.EINVAL) {
				os.Remove(name) // a refused O_DIRECT leaves the file behind
			}
			if err == nil {
				return f, flag == unix.O_DIRECT, nil
			}
		}
	}
	return nil, false, err
}

// phase calls move from diskThreads goroutines for diskPhase, at least once from each.
func phase(move func(thread int, block int64, buf []byte) (int, error)) (bytesPerSecond float64, err error) {
	var (
		moved  atomic.Int64
		errs   [diskThreads]error
		group  sync.WaitGroup
		began  = time.Now()
		before = began.Add(diskPhase)
	)
	for thread := range diskThreads {
		buf, err := alignedBlock()
		if err != nil {
			return 0, err
		}
		group.Go(func() {
			for block := int64(0); block == 0 || time.Now().Before(before); block++ {
				n, err := move(thread, block, buf)
				if err != nil {
					errs[thread] = err
					return
				}
				moved.Add(int64(n))
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return 0, err
	}
	return float64(moved.Load()) / time.Since(began).Seconds(), nil
}

// alignedBlock returns page-aligned memory, as direct I/O needs it, filled with
// bytes that do not compress.
func alignedBlock() ([]byte, error) {
	buf, err := unix.Mmap(-1, 0, diskBlockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(buf) // it cannot fail
	return buf, nil                        // unmapped when the probe's process ends
}
