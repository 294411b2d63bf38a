package visibility

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
)

var shared = blockio.Mover{Mode: blockio.Shared, Kind: blockio.Disk}

// TestSeenAtOnce: a reader with descriptors of its own on one file system sees each write at once, through the descriptor it has had open before,
// although other hosts ask it meanwhile.
func TestSeenAtOnce(t *testing.T) {
	dir := t.TempDir()
	opened := map[string]int{}
	r := &Reader{Mover: shared, Path: func(host string) string {
		opened[host]++
		return filepath.Join(dir, host)
	}}
	defer r.Close()
	file := filepath.Join(dir, "a")
	other, err := open(filepath.Join(dir, "b"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	defer other.closeLater()
	questions := 0
	atOnce, err := Check{Path: file, Mover: shared, Ask: func(ctx context.Context, q Asked) (Read, error) {
		questions++
		if _, err := r.Read(ctx, "b", q); err != nil {
			return Read{}, err
		}
		return r.Read(ctx, "a", q)
	}}.Run(t.Context())
	if !atOnce || err != nil || questions != rounds || opened["a"] != 1 {
		t.Errorf("at once: %v, %v, after %d questions, opened %d times", atOnce, err, questions, opened["a"])
	}
}

// TestSeenLate: what another host's client keeps for however short a while counts, but the name of the new file may take its time, and so may the
// answers.
func TestSeenLate(t *testing.T) {
	for _, c := range []struct {
		name    string
		nameFor time.Duration // the reader does not find the file for so long
		oldFor  time.Duration // and reads what was there before for so long
		slow    time.Duration // each answer takes that
		rare    bool          // only one of the rounds is late
		atOnce  bool
	}{
		{name: "a new name", nameFor: 3 * time.Second, atOnce: true},
		{name: "slow answers", nameFor: time.Second, slow: 30 * time.Second, atOnce: true},
		{name: "a moment", oldFor: time.Millisecond},
		{name: "once", oldFor: time.Second, rare: true},
		{name: "never", oldFor: time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "of-a")
				r := &Reader{Mover: shared, Path: func(string) string { return file }}
				defer r.Close()
				round, began, old := -1, time.Now(), Read{}
				atOnce, err := Check{Path: file, Mover: shared, Ask: func(ctx context.Context, q Asked) (Read, error) {
					if q.Round != round {
						round, began = q.Round, time.Now()
					}
					got, err := r.Read(ctx, "a", q)
					time.Sleep(c.slow)
					switch {
					case round == 0 && time.Since(began) < c.nameFor:
						return Read{}, nil
					case round > 0 && time.Since(began) < c.oldFor && (!c.rare || round == rounds-1):
						return old, nil
					}
					old = got
					return got, err
				}}.Run(t.Context())
				if err != nil || atOnce != c.atOnce {
					t.Errorf("at once: %v, %v", atOnce, err)
				}
			})
		})
	}
}

// TestNeverFound: a file that the other host never finds says nothing about bytes, and old bytes under a name that it knows do.
func TestNeverFound(t *testing.T) {
	for digest, known := range map[string]bool{"": false, "old": true} {
		synctest.Test(t, func(t *testing.T) {
			atOnce, err := Check{Path: filepath.Join(t.TempDir(), "of-a"), Mover: shared, Ask: func(context.Context, Asked) (Read, error) { return Read{Digest: digest}, nil }}.Run(t.Context())
			if atOnce || (err == nil) != known {
				t.Errorf("%q: at once: %v, %v", digest, atOnce, err)
			}
		})
	}
}

// TestErrors: the file system's errors and the other host's are told, and nothing is read through a link or from what is no file.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink(fifo, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir} {
		r := &Reader{Mover: shared, Path: func(string) string { return path }}
		if got, err := r.Read(t.Context(), "a", Asked{}); err == nil || got != (Read{}) {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
		if _, err := (Check{Path: path, Mover: shared}).Run(t.Context()); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	r := &Reader{Mover: shared, Path: func(string) string { return filepath.Join(dir, "missing") }}
	if got, err := r.Read(t.Context(), "a", Asked{}); err != nil || got.Digest != "" {
		t.Errorf("a name that is not there: %+v, %v", got, err)
	}
	if _, err := r.Read(t.Context(), "a", Asked{Round: 2}); !errors.Is(err, ErrBeginAnew) {
		t.Errorf("a file that is not open: %v", err)
	}
	failed := errors.New("the other host is gone")
	if _, err := (Check{Path: filepath.Join(dir, "file"), Mover: shared, Ask: func(context.Context, Asked) (Read, error) { return Read{}, failed }}).Run(t.Context()); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// TestReaderIsBounded: while one question hangs, others wait no longer than their contexts, and so does whoever asked it. Afterwards all is as before.
// However many hosts ask, few files stay open.
func TestReaderIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "of-a")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var hangs atomic.Bool
	entered, goOn := make(chan struct{}), make(chan struct{})
	r := &Reader{Mover: shared, Path: func(string) string {
		if hangs.Load() {
			entered <- struct{}{}
			<-goOn
		}
		return file
	}}
	defer r.Close()
	hangs.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for _, host := range []string{"a", "b"} {
		go func() {
			_, err := r.Read(ctx, host, Asked{})
			done <- err
		}()
	}
	<-entered
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	hangs.Store(false)
	close(goOn)
	for n := range 3 * mostKept {
		if _, err := r.Read(t.Context(), strconv.Itoa(n), Asked{}); err != nil {
			t.Fatal(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) != mostKept {
		t.Errorf("%d files are open", len(r.kept))
	}
}

// TestCutOffWrite: a check that ends while its write hangs neither closes the descriptors under it nor writes afterwards.
func TestCutOffWrite(t *testing.T) {
	f, err := open(filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock() // a write is under way
	fd := f.buffered
	f.closeLater()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Errorf("closed under a write: %v", err)
	}
	f.mu.Unlock()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := f.overwrite(shared, parts(0)); errors.Is(err, os.ErrClosed) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("still open")
		}
	}
}
