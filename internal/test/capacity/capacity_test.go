package capacity

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

const (
	blockBytes = 1 << 20
	writers    = 8 // through the mount, and as many through rings
	readers    = 4
)

// limitBytes is the capacity of the test: with KV3FS_SOAK, 1 GiB.
func limitBytes() int64 {
	if soak() {
		return 1 << 30
	}
	return 64 << 20
}

func soak() bool { return os.Getenv("KV3FS_SOAK") != "" }

// ownDisk mounts a file system in memory for a daemon's data, whose statfs says exactly
// what is taken at a moment. A walk over the files takes a while, in which they change.
func ownDisk(t *testing.T, sizeBytes int64) (dir string) {
	t.Helper()
	daemontest.NeedRoot(t)
	daemontest.NeedMounts(t)
	dir = filepath.Join(daemontest.NewDir(t), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("kv3fs-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", sizeBytes)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func takenBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// fill makes the content of block n.
func fill(b []byte, n uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n*0x9e3779b97f4a7c15+uint64(i))
	}
}

func wrong(b []byte, n uint64) bool {
	for i := 0; i < len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != n*0x9e3779b97f4a7c15+uint64(i) {
			return true
		}
	}
	return len(b) != blockBytes
}

// engines write blocks, as LMCache names them, and read them back.
type engines struct {
	t       *testing.T
	mount   string
	last    atomic.Uint64 // number of the newest block
	written atomic.Int64
	read    atomic.Int64
	missing atomic.Int64
}

func (e *engines) path(n uint64, end string) string {
	return filepath.Join(e.mount, fmt.Sprintf("kv%d", n%4), fmt.Sprintf("meta-llama-SEP-Llama-3-8B@1@0@%x@half%s", n, end))
}

// write makes one block with fn, which stores b in the file.
func (e *engines) write(b []byte, fn func(f *os.File, b []byte) error) error {
	n := e.last.Add(1)
	fill(b, n)
	draft := e.path(n, ".tmp")
	f, err := os.OpenFile(draft, os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	err = errors.Join(fn(f, b), f.Close())
	if err == nil {
		err = os.Rename(draft, e.path(n, ".data"))
	}
	if err != nil {
		return fmt.Errorf("block %d: %w", n, err)
	}
	e.written.Add(1)
	return nil
}

func (e *engines) pause(ctx context.Context, err error) (stop bool) {
	if err != nil {
		e.t.Error(err)
	}
	return ctx.Err() != nil || err != nil
}

func (e *engines) writeFiles(ctx context.Context) {
	b := make([]byte, blockBytes)
	for {
		err := e.write(b, func(f *os.File, b []byte) error {
			_, err := f.WriteAt(b, 0)
			return err
		})
		if e.pause(ctx, err) {
			return
		}
	}
}

// ring opens a ring of a direction and a buffer of a block.
func (e *engines) ring(write bool) (m *usrbio.Mount, r *usrbio.Ring, v *usrbio.Iov, err error) {
	ctx := context.Background()
	if m, err = usrbio.Open(ctx, e.mount); err != nil {
		return nil, nil, nil, err
	}
	if v, err = m.NewIov(ctx, blockBytes, usrbio.IovOptions{}); err == nil {
		r, err = m.NewRing(ctx, usrbio.RingOptions{Entries: 16, Write: write})
	}
	return m, r, v, err
}

// move moves a block between a file and an iov in pieces.
func move(m *usrbio.Mount, r *usrbio.Ring, v *usrbio.Iov, f *os.File) error {
	ctx := context.Background()
	file, err := m.Register(ctx, f)
	if err != nil {
		return err
	}
	defer file.Close(ctx)
	const pieces = 4
	requests := make([]usrbio.Request, pieces)
	for i := range requests {
		at := int64(i) * blockBytes / pieces
		requests[i] = usrbio.Request{File: file, FileOffset: at, Iov: v, IovOffset: at, Bytes: blockBytes / pieces}
	}
	if err := r.Do(ctx, requests); err != nil {
		return err
	}
	for i := range requests {
		if requests[i].Result != requests[i].Bytes {
			return fmt.Errorf("piece %d: %d, %w", i, requests[i].Result, requests[i].Err())
		}
	}
	return nil
}

func (e *engines) writeRings(ctx context.Context) {
	m, r, v, err := e.ring(true)
	if err != nil {
		e.t.Error(err)
		return
	}
	defer m.Close(context.Background())
	for {
		err := e.write(v.Bytes(), func(f *os.File, _ []byte) error { return move(m, r, v, f) })
		if e.pause(ctx, err) {
			return
		}
	}
}

// readBlocks reads blocks through the mount and rings in turn. A block that is gone is a miss;
// one that is there is right.
func (e *engines) readBlocks(ctx context.Context) {
	m, r, v, err := e.ring(false)
	if err != nil {
		e.t.Error(err)
		return
	}
	defer m.Close(context.Background())
	b := make([]byte, blockBytes)
	for turn := 0; ctx.Err() == nil; turn++ {
		n := max(1, e.last.Load()-rand.Uint64N(min(e.last.Load()+1, 128)))
		f, err := os.Open(e.path(n, ".data"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
			e.missing.Add(1)
			continue
		}
		if err != nil {
			e.t.Error(err)
			return
		}
		got := b
		clear(b)
		clear(v.Bytes()) // it has a block already
		if turn%2 == 0 {
			_, err = f.ReadAt(b, 0)
		} else {
			err = move(m, r, v, f)
			got = v.Bytes()
		}
		f.Close()
		if err != nil || wrong(got, n) {
			e.t.Errorf("block %d is there, and reading it fails or gives other bytes: %v", n, err)
			return
		}
		e.read.Add(1)
	}
}

// The capacity holds at every moment while engines write several times as much, no write
// fails, and what is there is right.
func TestCapacityHolds(t *testing.T) {
	limit := limitBytes()
	type servers struct {
		flags           string
		noMount, noRing bool
	}
	all := map[string]servers{"passthrough": {}, "no passthrough": {flags: "--passthrough off"}}
	if soak() {
		all["through the mount alone"] = servers{noRing: true}
		all["through rings alone"] = servers{noMount: true}
	}
	for name, use := range all {
		t.Run(name, func(t *testing.T) {
			disk := ownDisk(t, 2*limit+(64<<20))
			d := daemontest.ServeWith(t, daemontest.Options{
				Data:  disk,
				Flags: append(strings.Fields(use.flags), "--capacity", strconv.FormatInt(limit, 10), "--eviction-grace", "1s", "--deadline", "1m", "--pages-listen", "off"),
			})
			own := takenBytes(t, disk)
			e := &engines{t: t, mount: d.Mount}
			for i := range 4 {
				if err := os.Mkdir(filepath.Join(d.Mount, fmt.Sprintf("kv%d", i)), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var all sync.WaitGroup
			for range writers {
				if !use.noMount {
					all.Go(func() { e.writeFiles(ctx) })
				}
				if !use.noRing {
					all.Go(func() { e.writeRings(ctx) })
				}
			}
			for range readers {
				all.Go(func() { e.readBlocks(ctx) })
			}
			most := int64(0)
			for end := time.Now().Add(2 * time.Minute); e.written.Load()*blockBytes < 4*limit && !t.Failed(); time.Sleep(time.Millisecond) {
				// The keeper's own state is not counted; it is small.
				most = max(most, takenBytes(t, disk)-own)
				if time.Now().After(end) {
					t.Errorf("after two minutes, only %d blocks were written", e.written.Load())
				}
			}
			stop()
			all.Wait()
			if most > limit {
				t.Errorf("%d bytes were taken at one moment, %d more than the capacity", most, most-limit)
			}
			if most < limit/2 || e.read.Load() == 0 {
				t.Errorf("at most %d bytes were taken, and %d blocks read: this tests nothing", most, e.read.Load())
			}
			t.Logf("%d blocks written, %d read, %d missed; at most %d of %d bytes taken", e.written.Load(), e.read.Load(), e.missing.Load(), most, limit)
			if t.Failed() {
				t.Log(d.Log())
			}
		})
	}
}

// A daemon that is killed while it evicts ends at once, whatever its clients wait for, and the
// next one holds the capacity.
func TestKilledWhileEvicting(t *testing.T) {
	const limit = 48 << 20
	disk := ownDisk(t, 2*limit+(64<<20))
	d := daemontest.ServeWith(t, daemontest.Options{
		Data:  disk,
		Flags: []string{"--capacity", strconv.Itoa(limit), "--eviction-grace", "1s", "--pages-listen", "off"},
	})
	own := takenBytes(t, disk)
	var last atomic.Uint64
	for range 3 {
		e := &engines{t: t, mount: d.Mount}
		e.last.Store(last.Load())
		for i := range 4 {
			if err := os.Mkdir(filepath.Join(d.Mount, fmt.Sprintf("kv%d", i)), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				// Until the daemon is gone.
				for b := make([]byte, blockBytes); ; {
					if err := e.write(b, func(f *os.File, b []byte) error { _, err := f.Write(b); return err }); err != nil {
						return
					}
				}
			})
		}
		for end := time.Now().Add(time.Minute); e.written.Load()*blockBytes < 2*limit; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after a minute, only %d blocks were written; %s", e.written.Load(), d.Log())
			}
		}
		d.Kill()
		if d.Alive() {
			t.Fatal("a daemon that was killed does not end")
		}
		all.Wait()
		last.Store(e.last.Load())
		d.Start(t)
		if taken := takenBytes(t, disk) - own; taken > limit {
			t.Errorf("%d bytes are taken, %d more than the capacity", taken, taken-limit)
		}
	}
}
