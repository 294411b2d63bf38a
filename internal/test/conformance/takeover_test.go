package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// writer is a client that makes files and looks for those that it has made, whatever
// happens to the daemon.
type writer struct {
	dir, name string
	confirmed []string
	count     atomic.Int64 // of confirmed
	wrong     []error
}

// run writes and looks until stop is closed.
func (w *writer) run(stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		path := filepath.Join(w.dir, fmt.Sprintf("%s-%d", w.name, n))
		err := os.WriteFile(path, []byte(path), 0o644)
		if err == nil {
			w.confirmed = append(w.confirmed, path)
			w.count.Add(1)
		} else {
			w.judge(err)
		}
		if len(w.confirmed) > 0 {
			w.look(w.confirmed[rand.IntN(len(w.confirmed))])
		}
	}
}

// look checks that a confirmed file is there, or that nobody answers.
func (w *writer) look(path string) {
	if _, err := os.Stat(path); err != nil {
		w.judge(err)
		return
	}
	if text, err := os.ReadFile(path); err != nil {
		w.judge(err)
	} else if !bytes.Equal(text, []byte(path)) {
		w.wrong = append(w.wrong, fmt.Errorf("%s: contains %q", path, text))
	}
}

// judge notes an error that is not the death of the daemon. EIO is one: the kernel's answer
// to a request that the daemon was just receiving when it was killed.
func (w *writer) judge(err error) {
	for _, death := range []error{syscall.ENOTCONN, syscall.ECONNABORTED, syscall.EIO} {
		if errors.Is(err, death) {
			return
		}
	}
	w.wrong = append(w.wrong, err)
}

// TestTakeoverUnderWriters kills the daemon again and again while clients write. From the
// kill until the next daemon serves they get errors; never do they see, or write to, the
// directory beneath the mount.
func TestTakeoverUnderWriters(t *testing.T) {
	daemontest.NeedRoot(t) // nobody else can mount over a dead mount
	kills := 20
	if testing.Short() {
		kills = 8
	}
	w := start(t, daemontest.Options{})
	stop := make(chan struct{})
	var running sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); running.Wait() })
	defer end()
	writers := make([]*writer, 3)
	for i := range writers {
		writers[i] = &writer{dir: w.Mount, name: fmt.Sprintf("writer%d", i)}
		running.Go(func() { writers[i].run(stop) })
	}
	progress := func() {
		t.Helper()
		const each = 5
		for _, c := range writers {
			goal := c.count.Load() + each
			eventually(t, "every client writes", func() bool { return c.count.Load() >= goal })
		}
	}
	progress()
	for range kills {
		w.Kill()
		w.Start(t)
		progress()
	}
	end()
	files := 0
	for _, c := range writers {
		for _, path := range c.confirmed {
			c.look(path)
		}
		files += len(c.confirmed)
		if len(c.wrong) > 0 {
			t.Errorf("%s: %d wrong answers in %d kills, the first: %v", c.name, len(c.wrong), kills, c.wrong[0])
		}
	}
	must(t, w.Stop())
	if lost := namesIn(t, w.Mount); len(lost) > 0 {
		t.Errorf("%d of %d files are in the directory beneath the mount: %v", len(lost), files, lost[0])
	}
}

// TestWarnsOfTheDirectoryBeneath checks that a start says what clients can do, and have done,
// beneath the mount, also where a dead mount covers it, and says nothing without a reason.
func TestWarnsOfTheDirectoryBeneath(t *testing.T) {
	daemontest.NeedRoot(t)
	point := filepath.Join(daemontest.NewDir(t), "mnt")
	must(t, os.Mkdir(point, 0o755))
	warns := func(when, log string, files, open bool) {
		t.Helper()
		if strings.Contains(log, "is not empty") != files || strings.Contains(log, "every user can write") != open {
			t.Errorf("%s:\n%s", when, log)
		}
	}
	w := start(t, daemontest.Options{Mount: point})
	warns("only root can write", w.Log(), false, false)
	must(t, w.Stop())
	must(t, os.Chmod(point, 0o777))
	w.Start(t)
	warns("every user can write", w.Log(), false, true)
	must(t, w.Stop())
	lost := write(t, point+"/lost", nil)
	w.Start(t)
	warns("there is a file", w.Log(), true, true)
	w.Kill()
	w.Start(t)
	warns("there is a file beneath a dead mount", w.Log(), true, true)
	must(t, w.Stop())
	must(t, os.Remove(lost))
}
