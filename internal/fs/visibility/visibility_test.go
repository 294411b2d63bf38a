package visibility

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
)

var shared = blockio.Mover{Mode: blockio.Shared, Kind: blockio.Disk}

// TestSeenAtOnce: a reader with descriptors of its own on one file system sees each write at once, through the descriptor it has had open before.
func TestSeenAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "of-a")
	r := &Reader{Mover: shared, Path: func(string) string { return file }}
	defer r.Close()
	questions := 0
	late, err := Check{Path: file, Mover: shared, Ask: func(ctx context.Context, q Asked) (Read, error) {
		questions++
		return r.Read(ctx, "a", q)
	}}.Run(t.Context())
	if late != 0 || err != nil || questions != rounds {
		t.Errorf("late %v, %v, after %d questions", late, err, questions)
	}
}

// TestSeenLate: what another host's client kept for a while counts from the write on, but the name of the new file may take its time.
func TestSeenLate(t *testing.T) {
	for _, c := range []struct {
		name        string
		nameFor     time.Duration // the reader does not find the file for so long
		oldFor      time.Duration // and reads what was there before for so long
		least, most time.Duration
	}{
		{"a new name", 3 * time.Second, 0, 0, 0},
		{"a second", 0, time.Second, time.Second, time.Second + 2*again},
		{"never", 0, time.Hour, lateWithin, lateWithin + 2*again},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "of-a")
				r := &Reader{Mover: shared, Path: func(string) string { return file }}
				defer r.Close()
				round, began, old := -1, time.Now(), Read{}
				late, err := Check{Path: file, Mover: shared, Ask: func(ctx context.Context, q Asked) (Read, error) {
					if q.Round != round {
						round, began = q.Round, time.Now()
					}
					got, err := r.Read(ctx, "a", q)
					switch {
					case round == 0 && time.Since(began) < c.nameFor:
						return Read{}, nil
					case round > 0 && time.Since(began) < c.oldFor:
						return old, nil
					}
					old = got
					return got, err
				}}.Run(t.Context())
				if err != nil || late < c.least || late > c.most {
					t.Errorf("late %v, %v", late, err)
				}
			})
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
	if got, err := r.Read(t.Context(), "a", Asked{Round: 2}); err != nil || got.Digest != "" {
		t.Errorf("a name that is not there: %+v, %v", got, err)
	}
	failed := errors.New("the other host is gone")
	if _, err := (Check{Path: filepath.Join(dir, "file"), Mover: shared, Ask: func(context.Context, Asked) (Read, error) { return Read{}, failed }}).Run(t.Context()); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// TestReaderIsBounded: while one question hangs, others are refused at once, and nobody waits beyond the context. Afterwards all is as before.
func TestReaderIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "of-a")
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
	go func() {
		_, err := r.Read(ctx, "a", Asked{})
		done <- err
	}()
	<-entered
	if _, err := r.Read(t.Context(), "b", Asked{}); !errors.Is(err, errBusy) {
		t.Errorf("a second question: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	hangs.Store(false)
	close(goOn)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := r.Read(t.Context(), "b", Asked{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
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
