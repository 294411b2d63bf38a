package capacity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// slowest makes and removes files until ctx ends, and returns how long that took at most: a machine that is too slow for
// that is too slow for writers that wait for removals.
func slowest(ctx context.Context, t *testing.T, dir string) (most time.Duration) {
	name := filepath.Join(dir, "probe")
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		began := time.Now()
		if err := errors.Join(os.WriteFile(name, make([]byte, blockBytes), 0o600), os.Remove(name)); err != nil {
			t.Error(err)
			return most
		}
		most = max(most, time.Since(began))
	}
	return most
}

// On a disk, with the deadline that requests have by default, no write through a ring fails while files can go.
func TestDefaultDeadlineOnADisk(t *testing.T) {
	const limit = 48 << 20
	d := daemontest.ServeWith(t, daemontest.Options{Flags: []string{"--capacity", strconv.Itoa(limit), "--eviction-grace", "1s", "--pages-listen", "off"}})
	for i := range 4 {
		if err := os.Mkdir(filepath.Join(d.Mount, fmt.Sprintf("kv%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var probe, all sync.WaitGroup
	var most time.Duration
	beside := filepath.Dir(d.Data) // on the same disk, and not counted
	probe.Go(func() { most = slowest(ctx, t, beside) })
	e := &engines{t: t, mount: d.Mount}
	var failed atomic.Pointer[error]
	for range writers {
		all.Go(func() {
			m, r, v, err := e.ring(true)
			if err == nil {
				defer m.Close(context.Background())
			}
			for err == nil && failed.Load() == nil && e.written.Load()*blockBytes < 4*limit {
				err = e.write(v.Bytes(), func(f *os.File, _ []byte) error { return move(m, r, v, f) })
			}
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	all.Wait()
	stop()
	probe.Wait()
	t.Logf("%d blocks written; making and removing a file took at most %v", e.written.Load(), most)
	if err := failed.Load(); err != nil {
		if most > time.Second {
			t.Skipf("the disk or the machine is too slow to tell: making and removing a file took %v; %v", most, *err)
		}
		t.Errorf("after %d blocks: %v; %s", e.written.Load(), *err, d.Log())
	}
}

// What was used, through the mount or a ring, outlives a restart of the daemon and then what was written later and not used.
func TestUsesOutliveARestart(t *testing.T) {
	const there, limit = 10, 16 << 20
	d := daemontest.ServeWith(t, daemontest.Options{Flags: []string{"--capacity", strconv.Itoa(limit), "--eviction-grace", "1s", "--pages-listen", "off"}})
	for i := range 4 {
		if err := os.Mkdir(filepath.Join(d.Mount, fmt.Sprintf("kv%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e := &engines{t: t, mount: d.Mount}
	b := make([]byte, blockBytes)
	put := func() {
		t.Helper()
		if err := e.write(b, func(f *os.File, b []byte) error { _, err := f.Write(b); return err }); err != nil {
			t.Fatal(err)
		}
	}
	is := func(n uint64) bool {
		_, err := os.Stat(e.path(n, ".data"))
		return err == nil
	}
	for range there {
		put()
	}
	time.Sleep(2500 * time.Millisecond) // uses are counted in seconds
	if _, err := os.ReadFile(e.path(1, ".data")); err != nil {
		t.Fatal(err)
	}
	m, r, v, err := e.ring(false)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(e.path(2, ".data"))
	if err == nil {
		err = errors.Join(move(m, r, v, f), f.Close(), m.Close(context.Background()))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	d.Start(t)
	gone := func() (n int) {
		for i := uint64(3); i <= there; i++ {
			if !is(i) {
				n++
			}
		}
		return n
	}
	// The two were written first, so without their uses they would go first.
	for end := time.Now().Add(time.Minute); gone() < 4; {
		if !is(1) || !is(2) {
			t.Fatalf("a block that was used before the restart went when %d had that were not; %s", gone(), d.Log())
		}
		if time.Now().After(end) {
			t.Fatalf("after a minute, %d blocks are gone; %s", gone(), d.Log())
		}
		put()
		time.Sleep(20 * time.Millisecond)
	}
	if !is(1) || !is(2) {
		t.Errorf("a block that was used before the restart went before others; %s", d.Log())
	}
}
