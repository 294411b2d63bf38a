package integrity

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The opening by a client that can use a file without the daemon does not count, and the next one of the same thread does:
// it may be that of the file in the data directory, which a client can map.
func TestPassedOnce(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		if !s.fine || !s.watch.threads {
			s.Close()
			t.Skip("NOT TESTED: files' times are coarse, or this is no root")
		}
		o := create(t, s, filepath.Join(dir, "f"))
		x := startOther(t)
		x.path = o.path
		thread := x.does("nothing", 0)
		o.sums.Passed(thread)
		x.does("look", 0)
		o.write(random(rng, RangeBytes), 0)
		if d := o.sums.words.get(0).degree(); d != firm {
			t.Errorf("%s: of degree %d, although the opening was told of", dir, d)
		}
		x.does("close", 0)

		b := random(rng, RangeBytes)
		w := o.sums.BeginWrite(&Write{}, o.fd, 0, RangeBytes)
		w.HashOwn(b)
		if _, err := unix.Pwrite(o.fd, b, 0); err != nil {
			t.Fatal(err)
		}
		x.does("open", 0)
		x.does("map", RangeBytes)
		x.does("store", 5)
		x.does("close", 0)
		w.End(true)
		if _, bad, found, _ := o.read(0, RangeBytes); found {
			t.Errorf("%s: what the same thread stored through a mapping of its own was taken for damage: %v", dir, bad)
		}
		o.close()
		s.Close()
	}
}

// An opening that was told of long ago excuses none.
func TestPassedLongAgo(t *testing.T) {
	f := &File{passed: map[int32]time.Time{7: time.Now().Add(-2 * passedTime)}}
	if f.noteLocked(unix.FAN_OPEN, 7); f.others.Load() != 1 {
		t.Errorf("%d openings count", f.others.Load())
	}
}

// What the kernel tells is read while no ring and no client asks for it: it would pile up.
func TestEventsAreRead(t *testing.T) {
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	if s.watch.fd < 0 {
		t.Skip("NOT TESTED: no fanotify")
	}
	o := create(t, s, filepath.Join(dir, "f"))
	defer o.close()
	x := startOther(t)
	x.path = o.path
	x.does("look", 0)
	queued := func() int {
		n, err := unix.IoctlGetInt(s.watch.fd, unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if queued() == 0 {
		t.Fatal("the kernel told nothing of an opening")
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	for end := time.Now().Add(time.Minute); queued() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("what the kernel tells is not read")
			break
		}
	}
	stop()
	running.Wait()
	if o.sums.others.Load() == 0 {
		t.Error("what was read was not noted")
	}
}

// A change of attributes has an O_PATH descriptor, which cannot be watched.
func TestPathOnlyIsNoComplaint(t *testing.T) {
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	if s.watch.fd < 0 {
		t.Skipf("no fanotify: %v", s.watch.why)
	}
	var log bytes.Buffer
	s.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	name := filepath.Join(dir, "a")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(name, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	s.Release(s.Acquire(fd, false), fd)
	if log.Len() > 0 {
		t.Errorf("%s", &log)
	}
}

// Where the kernel tells nothing, the log says so once, and the counters how many files that is about.
func TestUnwatched(t *testing.T) {
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	a := create(t, s, filepath.Join(dir, "a"))
	if c := s.Counters(); s.watch.fd >= 0 && (c.InUse != 1 || c.Watched != 1) {
		t.Errorf("%+v", c)
	}
	a.close()
	s.watch.close()
	s.watch = &watch{fd: -1, why: unix.ENOSYS, files: map[string]*File{}}
	var log bytes.Buffer
	s.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, name := range []string{"b", "c"} {
		o := create(t, s, filepath.Join(dir, name))
		defer o.close()
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "function not implemented") {
		t.Errorf("%d lines in the log: %s", n, &log)
	}
	if c := s.Counters(); c.InUse != 2 || c.Watched != 0 {
		t.Errorf("%+v", c)
	}
}
