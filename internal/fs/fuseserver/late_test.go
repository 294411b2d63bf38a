package fuseserver

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

const lateAfter = 5 * time.Second

// lateWorld is a late without a mount.
type lateWorld struct {
	*late
	answered []uint64
	held     map[uint64]int
	out      map[uint64]int // kept from rings
	last     uint64
}

func newLateWorld(h *health.Store) *lateWorld {
	w := &lateWorld{held: map[uint64]int{}, out: map[uint64]int{}}
	w.late = newLate(lateOptions{limit: lateAfter, health: h, onDisk: func(node uint64) bool { return node < 1000 },
		answer: func(unique uint64) { w.answered = append(w.answered, unique) },
		hold:   func(node uint64) { w.held[node]++ }, drop: func(node uint64) { w.held[node]-- },
		keepOut: func(node uint64) { w.out[node]++ }, letIn: func(node uint64) { w.out[node]-- }})
	return w
}

func (w *lateWorld) numAnswered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.answered)
}

// request begins one of user 1000.
func (w *lateWorld) request(node uint64, u use) (*timed, fuse.Status) {
	return w.requestOf(1000, node, u)
}

func (w *lateWorld) requestOf(uid uint32, node uint64, u use) (*timed, fuse.Status) {
	w.last++
	h := &fuse.InHeader{Unique: w.last}
	h.Uid = uid
	return w.begin(h, node, u)
}

// A request that hangs is answered once, when its time is over. One that has ended in time is not.
func TestAnswersLateRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		quick, _ := w.request(7, use{})
		hangs, _ := w.request(8, use{node: 9})
		time.Sleep(lateAfter - 1)
		if quick.end() {
			t.Error("a request that has ended in time was answered before")
		}
		time.Sleep(time.Microsecond)
		synctest.Wait()
		if want := []uint64{2}; !slices.Equal(w.answered, want) || w.held[8] != 1 || w.held[9] != 1 || len(w.held) != 2 {
			t.Fatalf("answered: %v, want %v; held: %v", w.answered, want, w.held)
		}
		time.Sleep(time.Hour)
		if !hangs.end() || hangs.end() {
			t.Error("it was answered, which is said once")
		}
		if len(w.answered) != 1 || w.held[8] != 0 || w.held[9] != 0 || w.hanging.Load() != 0 || len(w.nodes)+len(w.reads)+len(w.users)+len(w.files) != 0 {
			t.Errorf("answered: %v; held: %v; hanging: %d, %v, %v, %v", w.answered, w.held, w.hanging.Load(), w.nodes, w.users, w.files)
		}
	})
}

// What uses a directory or file that a change hangs in is refused: the change may come yet. What only reads may hang there a
// few times for each user. Others go on.
func TestLateRequestsByNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		refused := func(node, further uint64) bool {
			c, st := w.request(node, use{node: further})
			c.end()
			return !st.Ok()
		}
		change, _ := w.request(7, use{how: changes})
		if refused(7, 0) {
			t.Error("refused before the change is late")
		}
		time.Sleep(lateAfter + 1)
		synctest.Wait()
		if !refused(7, 0) || !refused(8, 7) || refused(8, 9) {
			t.Error("a change hangs in node 7, and that node is not refused, or others are")
		}
		change.end()
		if refused(7, 0) {
			t.Error("refused after the change has ended")
		}
		var all []*timed
		for range mostPerNode {
			if refused(8, 0) {
				t.Errorf("refused after %d reads hang", len(all))
			}
			c, _ := w.request(8, use{})
			all = append(all, c)
			time.Sleep(lateAfter + 1)
			synctest.Wait()
		}
		if !refused(8, 0) || refused(9, 0) {
			t.Error("so many reads hang in node 8, and it is not refused, or others are")
		}
		if c, st := w.requestOf(1001, 8, use{}); !st.Ok() || c.end() {
			t.Error("the reads of one user hang in a node, and it is refused to another")
		}
		for _, c := range all {
			c.end()
		}
	})
}

// While the file system is known to hang, a few requests find out whether it is back; what is on another file system goes on.
// What waits for room is given up only now.
func TestLateRequestsWhileHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		h := health.Watch(health.Options{Dir: "/data", Limit: time.Second, Log: slog.New(slog.DiscardHandler), Look: func() error { <-back; return nil }})
		w := newLateWorld(h)
		room, _ := w.request(2, use{how: changes})
		room.wait()
		time.Sleep(lateAfter - 1)
		if h.Hangs() {
			t.Fatal("the first look has not begun")
		}
		all := []*timed{room}
		for node := uint64(10); ; node++ {
			c, st := w.request(node, use{})
			if !st.Ok() {
				break
			}
			all = append(all, c)
			time.Sleep(2 * lateAfter)
			synctest.Wait()
			if len(all) > mostWhileHung {
				t.Fatalf("%d requests hang, and none is refused", len(all))
			}
		}
		if !h.Hangs() || len(all) != mostWhileHung || len(w.answered) != mostWhileHung {
			t.Errorf("hangs: %v; %d requests begun, answered: %v", h.Hangs(), len(all), w.answered)
		}
		if c, st := w.request(1000, use{}); !st.Ok() || c.end() {
			t.Error("a request for another file system is refused")
		}
		for _, c := range all {
			c.end()
		}
		if c, st := w.request(10, use{}); !st.Ok() || c.end() {
			t.Error("they have ended, and a request is refused")
		}
		close(back)
		h.End()
		synctest.Wait()
	})
}

// What a change uses, as it becomes known while it runs, is refused as well once it is late: a file that is being renamed, a second directory.
func TestLateAlso(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		for _, before := range []func(*timed, ...uint64) error{(*timed).step, (*timed).unanswered} {
			c, _ := w.request(0, use{how: changes})
			if err := errors.Join(before(c, 8, 9), before(c, 9, 10)); err != nil { // of the last step only
				t.Fatal(err)
			}
			time.Sleep(lateAfter + 1)
			synctest.Wait()
			for node, want := range map[uint64]fuse.Status{8: fuse.OK, 9: fuse.EIO, 10: fuse.EIO} {
				other, st := w.request(node, use{})
				if other.end(); st != want {
					t.Errorf("node %d: %v, want %v", node, st, want)
				}
			}
			if w.held[9] != 1 || w.held[10] != 1 {
				t.Errorf("held: %v", w.held)
			}
			if c.end(); len(w.nodes) != 0 || w.held[8]+w.held[9]+w.held[10] != 0 {
				t.Errorf("it has ended: %v, held %v", w.nodes, w.held)
			}
		}
	})
}

// What has waited for room has the whole limit for the file system afterwards, and no more.
func TestLateAfterWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		c, _ := w.request(7, use{how: changes})
		c.wait()
		time.Sleep(10*lateAfter + time.Second)
		if err := c.waited(); err != nil || w.numAnswered() != 0 {
			t.Fatalf("it was answered while it waited for room: %v", err)
		}
		time.Sleep(lateAfter - 1)
		synctest.Wait()
		if w.numAnswered() != 0 || c.unanswered() != nil {
			t.Error("it was answered before its time was over")
		}
		time.Sleep(time.Microsecond)
		synctest.Wait()
		if w.numAnswered() != 1 || c.unanswered() != unix.EIO || c.waited() != unix.EIO {
			t.Errorf("answered %d times, then %v and %v", w.numAnswered(), c.unanswered(), c.waited())
		}
		c.end()
	})
}

// Of a request of many steps, each is to end in time. Once it was answered, it does no further ones.
func TestLateSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		c, _ := w.request(7, use{how: steps})
		for range 10 {
			time.Sleep(lateAfter - time.Second)
			if err := c.step(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(lateAfter - 1)
		synctest.Wait()
		if w.numAnswered() != 0 {
			t.Fatal("it was given up though its steps end in time")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := c.step(); w.numAnswered() != 1 || err != unix.EIO {
			t.Errorf("after a step that hung: answered %v, and the next step: %v", w.answered, err)
		}
		if !c.end() || len(w.nodes) != 0 {
			t.Error("it was answered, and is over")
		}
	})
}

// Reads that never end refuse a directory to their user for a while, not for ever: one more is tried, seldom while it
// hangs, too, and if it ends in time others go on.
func TestReadsThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		var all []*timed
		begin := func() bool {
			c, st := w.request(8, use{})
			if st.Ok() {
				all = append(all, c)
			}
			return st.Ok()
		}
		ends := func() bool {
			c, st := w.request(8, use{})
			c.end()
			return st.Ok()
		}
		for range mostPerNode {
			begin()
		}
		time.Sleep(lateAfter + 1)
		synctest.Wait()
		if ends() {
			t.Fatal("not refused at once")
		}
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(time.Second) {
			begin() // the file system hangs for an hour
		}
		synctest.Wait()
		if n := len(all); n <= mostPerNode || n > mostPerNode+10 {
			t.Errorf("%d requests were tried within an hour", n-mostPerNode)
		}
		for end := time.Now().Add(time.Hour); !ends(); time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatal("the file system works again, and the directory is refused for an hour")
			}
		}
		for range 100 {
			if !ends() {
				t.Fatal("refused after one has ended in time")
			}
		}
		for range mostPerNode {
			begin()
		}
		time.Sleep(lateAfter + 1)
		synctest.Wait()
		if ends() {
			t.Error("not refused though as many hang again")
		}
		for _, c := range all {
			c.end()
		}
		if !ends() || len(w.reads) != 0 {
			t.Errorf("they have ended, and there are %v", w.reads)
		}
	})
}

// Calls of a user that never end refuse everything to that user for a while, not for ever; but they are not more than a bound.
func TestUserWhoseCallsNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		var all []*timed
		node := uint64(0)
		begin := func() bool {
			node++
			c, st := w.request(node, use{})
			if st.Ok() {
				all = append(all, c)
			}
			return st.Ok()
		}
		ends := func() bool {
			c, st := w.request(1<<40, use{})
			c.end()
			return st.Ok()
		}
		for begin() {
			if time.Sleep(lateAfter + 1); len(all) > mostPerUser {
				t.Fatal("more hang than may")
			}
			synctest.Wait()
		}
		if c, st := w.requestOf(1001, 7, use{}); !st.Ok() || c.end() {
			t.Error("another user is refused")
		}
		eventually := func() bool {
			for end := time.Now().Add(time.Hour); !ends(); time.Sleep(time.Second) {
				if time.Now().After(end) {
					return false
				}
			}
			return true
		}
		for len(all) < mostLost {
			if !eventually() || !ends() {
				t.Fatalf("%d hang, the file system answers, and the user is refused", len(all))
			}
			for range mostPerUser {
				begin()
			}
			time.Sleep(lateAfter + 1)
			synctest.Wait()
		}
		if eventually() {
			t.Errorf("%d hang, and there may be more", len(all))
		}
		for _, c := range all {
			c.end()
		}
		if !ends() || len(w.users) != 0 {
			t.Errorf("they have ended, and there are %v", w.users)
		}
	})
}

// Rings are kept from a file whose bytes a late call may change, and only from that.
func TestLateBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		c, _ := w.request(7, use{how: changes, bytes: true})
		other, _ := w.request(8, use{how: changes, node: 9})
		time.Sleep(lateAfter + 1)
		synctest.Wait()
		if w.out[7] != 1 || len(w.out) != 1 {
			t.Errorf("kept from rings: %v", w.out)
		}
		c.end()
		other.end()
		if w.out[7] != 0 {
			t.Error("for ever")
		}
	})
}

// A file handle is released only when no request that hangs uses it.
func TestLateRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLateWorld(nil)
		var released []uint64
		release := func(file uint64) { w.release(file, func() { released = append(released, file) }) }
		a, _ := w.request(7, use{file: 1})
		b, _ := w.request(7, use{file: 1})
		time.Sleep(lateAfter + 1)
		synctest.Wait()
		release(1)
		release(2)
		a.end()
		if want := []uint64{2}; !slices.Equal(released, want) {
			t.Errorf("released: %v, want %v", released, want)
		}
		b.end()
		if want := []uint64{2, 1}; !slices.Equal(released, want) || len(w.after) != 0 {
			t.Errorf("released: %v, want %v", released, want)
		}
	})
}

// On a real mount: requests that hang end, other directories go on, and when the file system answers at last, all is as if the
// requests had been answered in time. On a slow machine any request may be late, so what must work is tried again.
func TestLateOnMount(t *testing.T) {
	d := faultdir.New(t)
	for _, dir := range []string{"a", "b"} {
		if err := errors.Join(os.Mkdir(filepath.Join(d.Beneath, dir), 0o755), os.WriteFile(filepath.Join(d.Beneath, dir, "f"), []byte("text"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorldAt(t, d.Path, Options{Deadline: 300 * time.Millisecond, Passthrough: PassthroughShared}, tree.Options{Shared: tree.Sharing{Uncached: true, Forget: func(int) {}}}, func(*Mount) {})
	late := func() int64 { return w.m.fs.late.hanging.Load() }
	eventually := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s; %d requests hang", what, late())
			}
		}
	}
	reads := func(name, text string) {
		t.Helper()
		eventually("read "+name, func() bool { got, err := os.ReadFile(w.path(name)); return err == nil && string(got) == text })
	}
	// hang has calls hang until ended, and sees one of them end with EIO meanwhile, and not because of what came before it.
	hang := func(what string, call func() error) {
		t.Helper()
		var hangs atomic.Bool
		d.Hang(func(c faultdir.Call) bool {
			is := c.Op == what || c.Name == what
			if is {
				hangs.Store(true)
			}
			return is
		})
		eventually(what+" hangs", func() bool { err := call(); return errors.Is(err, unix.EIO) && hangs.Load() && late() > 0 })
	}
	ended := func() {
		t.Helper()
		d.Heal()
		eventually("nothing hangs any more", func() bool { return late() == 0 })
	}
	var f *os.File
	open := func() {
		t.Helper()
		eventually("open", func() bool {
			var err error
			f, err = os.OpenFile(w.path("b/f"), os.O_RDWR, 0)
			return err == nil
		})
	}
	open()
	defer func() { f.Close() }()

	hang("one", func() error { return unix.Stat(w.path("a/one"), new(unix.Stat_t)) })
	reads("a/f", "text")
	reads("b/f", "text")
	ended()

	hang("mkdir", func() error { return unix.Mkdir(w.path("a/two"), 0o755) })
	wantErrno(t, "stat where a change hangs", unix.Stat(w.path("a/missing"), new(unix.Stat_t)), unix.EIO)
	reads("b/f", "text")
	ended()
	if err := unix.Stat(filepath.Join(d.Beneath, "a/two"), new(unix.Stat_t)); err != nil {
		t.Errorf("a directory that was made at last: %v", err)
	}

	hang("create", func() error {
		f, err := os.OpenFile(w.path("a/new"), os.O_CREATE|os.O_RDWR, 0o644)
		if err == nil {
			f.Close()
		}
		return err
	})
	ended()
	hang("opendir", func() error { _, err := os.ReadDir(w.path("b")); return err })
	ended()
	hang("write", func() error { _, err := f.WriteAt([]byte("more"), 0); return err })
	f.Close()
	ended()
	reads("b/f", "more")

	// What may be slow ends in time as well when it alone hangs.
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.Beneath, name), []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		if err := unix.Lstat(filepath.Join(d.Beneath, name), new(unix.Stat_t)); err != unix.ENOENT {
			t.Errorf("%s: %v", name, err)
		}
	}
	open()
	hang("fsync", f.Sync)
	ended()
	eventually("fsync", func() bool { return f.Sync() == nil })
	hang("setattr", func() error { return f.Truncate(2) })
	ended()
	reads("b/f", "mo")
	hang("flush", func() error { // the kernel tells of each close of a copy
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return unix.Close(fd)
	})
	ended()
	put("a/old")
	hang("unlink", func() error { return unix.Unlink(w.path("a/old")) })
	reads("b/f", "mo")
	ended()
	gone("a/old")
	put("a/from")
	hang("rename", func() error { return unix.Rename(w.path("a/from"), w.path("b/to")) })
	wantErrno(t, "stat where a rename is to come", unix.Stat(w.path("b/missing"), new(unix.Stat_t)), unix.EIO)
	ended()
	gone("a/from")
	reads("b/to", "text")
	// What hangs before its change does not make it: of two lookups the first is the client's, the second that of the removal.
	var looks atomic.Int64
	eventually("unlink hangs before it removes", func() bool {
		put("a/kept")
		d.Hang(func(c faultdir.Call) bool { return c.Op == "lookup" && c.Name == "kept" && looks.Add(1)%2 == 0 })
		return unix.Unlink(w.path("a/kept")) == unix.EIO && late() > 0
	})
	ended()
	if err := unix.Lstat(filepath.Join(d.Beneath, "a/kept"), new(unix.Stat_t)); err != nil {
		t.Errorf("a file was removed after its client was told that this failed: %v", err)
	}
	// One entry hangs, and what comes after it stays.
	if err := os.Mkdir(filepath.Join(d.Beneath, "b/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		put(fmt.Sprint("b/d/", i))
	}
	hang("unlink", func() error { return os.Symlink(w.path("b/d"), w.path("3fs-virt/rm-rf/d")) })
	ended()
	if left, err := os.ReadDir(filepath.Join(d.Beneath, "b/d")); err != nil || len(left) == 0 {
		t.Errorf("a removal went on after its client was told that it failed: %v, %v", left, err)
	}
	eventually("a second try", func() bool { return os.Symlink(w.path("b/d"), w.path("3fs-virt/rm-rf/d")) == nil })
	gone("b/d")
	f.Close()
	eventually("files are closed", func() bool { return w.m.fs.handles.len() == 0 })
}
