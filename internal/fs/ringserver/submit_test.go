package ringserver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// kernels are the two ways to wait for semaphores: in one call, and without such a call.
func kernels(t *testing.T, test func(t *testing.T, waitForMany bool)) {
	for _, many := range []bool{true, false} {
		t.Run(fmt.Sprintf("waitForMany=%v", many), func(t *testing.T) {
			if many && !shm.CanWaitForMany() {
				t.Skip("NOT TESTED: this kernel waits for one semaphore in a call")
			}
			test(t, many)
		})
	}
}

func newSems(t *testing.T, maxUsers int, waitForMany bool) *submitSems {
	t.Helper()
	s := newSubmitSemsFor(slog.New(slog.DiscardHandler), maxUsers, waitForMany)
	t.Cleanup(func() {
		s.close(false)
		if left, _ := filepath.Glob(filepath.Join(shm.Dir, s.namePrefix()+"*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return s
}

// openLink opens a user's semaphore as a client does.
func openLink(t *testing.T, s *submitSems, uid uint32, p wire.Priority) *shm.NamedSem {
	t.Helper()
	path, err := s.link(uid, p)
	if err != nil {
		t.Fatal(err)
	}
	return openSem(t, path)
}

// openSem opens the semaphore that a submit link names.
func openSem(t testing.TB, path string) *shm.NamedSem {
	t.Helper()
	sem, err := shm.OpenSem(strings.TrimPrefix(path, filepath.Join(shm.Dir, "sem.")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sem.Close(false) })
	return sem
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: giving a semaphore to another user needs root")
	}
}

// awaitPosts waits until these users have posted, in any order, and nobody else. Where the
// kernel cannot wait for many words, a wake-up posts for the leader's own user, too.
func awaitPosts(t *testing.T, w *submitWaiter, want []uint32) {
	t.Helper()
	want = slices.Clone(want)
	slices.Sort(want)
	missing := slices.Clone(want)
	for end := time.Now().Add(20 * time.Second); len(missing) > 0; {
		if time.Now().After(end) {
			t.Fatalf("posts of %v did not arrive", missing)
		}
		w.wait(time.Second)
		for _, uid := range w.posted(nil) {
			if _, wanted := slices.BinarySearch(want, uid); !wanted && w.own.waitForMany {
				t.Fatalf("user %d has posted, it seems", uid)
			}
			missing = slices.DeleteFunc(missing, func(m uint32) bool { return m == uid })
		}
	}
}

// Each user has semaphores that only it can open.
func TestSemaphoresArePrivate(t *testing.T) {
	requireRoot(t)
	s := newSems(t, 8, shm.CanWaitForMany())
	seen := map[string]bool{}
	for _, uid := range []uint32{0, 1001, 1002} {
		for _, p := range priorities {
			path, err := s.link(uid, p)
			if err != nil {
				t.Fatal(err)
			}
			fi, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if st := fi.Sys().(*syscall.Stat_t); fi.Mode() != 0o600 || st.Uid != uid || st.Size != 32 {
				t.Errorf("%s of user %d: mode %v, of user %d, %d bytes", path, uid, fi.Mode(), st.Uid, st.Size)
			}
			if seen[path] {
				t.Errorf("%s is shared", path)
			}
			seen[path] = true
			if again, err := s.link(uid, p); again != path || err != nil {
				t.Errorf("the link of user %d changed from %s to %s, %v", uid, path, again, err)
			}
		}
	}
}

// Posts of 200 users arrive: more than one call to the kernel can wait for, and no user
// knows of another.
func TestPostsOfManyUsers(t *testing.T) {
	requireRoot(t)
	const users = 200
	// Without futex_waitv, a user needs a thread, of which there are fewer.
	kernels(t, func(t *testing.T, many bool) {
		n := uint32(users)
		if !many {
			n = mostHelpers + 1
		}
		s := newSems(t, users, many)
		sems := map[uint32]*shm.NamedSem{}
		var uids []uint32
		for uid := range n {
			uids = append(uids, uid)
			if uid%2 == 0 { // clients read the link before they register or afterwards
				sems[uid] = openLink(t, s, uid, wire.Normal)
			}
			s.pin(semsKey{uid: uid})
			if uid%2 != 0 {
				sems[uid] = openLink(t, s, uid, wire.Normal)
			}
		}
		w := s.waiter(wire.Normal)
		for range 3 {
			var posting sync.WaitGroup
			posting.Go(func() {
				for _, sem := range sems {
					sem.Post()
				}
			})
			awaitPosts(t, w, uids)
			posting.Wait()
		}
		for _, uid := range uids { // one at a time: none depends on the others' posts
			sems[uid].Post()
			awaitPosts(t, w, []uint32{uid})
		}
		for _, uid := range uids {
			s.unpin(semsKey{uid: uid})
		}
	})
}

// A set without rings makes room for another user; sets of users with rings stay, and then
// there is room for root only.
func TestRingUsersAreBounded(t *testing.T) {
	requireRoot(t)
	s := newSems(t, 4, shm.CanWaitForMany())
	paths := map[uint32]string{}
	for uid := uint32(1); uid <= 6; uid++ { // 1 and 2 are gone after 6
		path, err := s.link(uid, wire.Normal)
		if err != nil {
			t.Fatal(err)
		}
		paths[uid] = path
	}
	for uid := uint32(1); uid <= 6; uid++ {
		if _, err := os.Stat(paths[uid]); (err == nil) != (uid > 2) {
			t.Errorf("user %d's semaphore: %v", uid, err)
		}
	}
	for uid := uint32(3); uid <= 6; uid++ {
		s.pin(semsKey{uid: uid})
	}
	s.pin(semsKey{uid: 1}) // registers a ring with a semaphore that is gone by now
	if _, err := s.link(1, wire.Normal); err != syscall.EMFILE {
		t.Errorf("a fifth user with rings: %v, want EMFILE", err)
	}
	if _, err := s.link(0, wire.Normal); err != nil {
		t.Errorf("root: %v", err)
	}
	s.unpin(semsKey{uid: 5})
	if _, err := s.link(1, wire.Normal); err != nil {
		t.Errorf("when a user has no rings any more: %v", err)
	}
	for _, uid := range []uint32{1, 3, 4, 6} {
		s.unpin(semsKey{uid: uid})
	}
	if len(s.users) > 5 {
		t.Errorf("%d users are kept, want at most 4 and root", len(s.users))
	}
}

// Whatever its user writes into a semaphore, posts of others arrive at once, and its own
// at the next look or once it is mended.
func TestSemaphoreDefaced(t *testing.T) {
	requireRoot(t)
	defacements := map[string]func(path string) error{
		"the waiter count lost": func(path string) error { return overwrite(path, make([]byte, 8)) },
		"zeros":                 func(path string) error { return overwrite(path, make([]byte, 32)) },
		"ones":                  func(path string) error { return overwrite(path, bytes.Repeat([]byte{0xff}, 32)) },
		"the largest value":     func(path string) error { return overwrite(path, []byte{0xff, 0xff, 0xff, 0x7f}) },
		"many waiters":          func(path string) error { return overwrite(path, []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}) },
	}
	if !raceEnabled { // its own accesses to shared memory cannot be guarded
		defacements["shrunk"] = func(path string) error { return os.Truncate(path, 0) }
		defacements["huge"] = func(path string) error { return os.Truncate(path, 1<<40) }
	}
	kernels(t, func(t *testing.T, many bool) {
		for name, deface := range defacements {
			t.Run(name, func(t *testing.T) {
				s := newSems(t, 4, many)
				hostile, honest := openLink(t, s, 1001, wire.Normal), openLink(t, s, 1002, wire.Normal)
				w := s.waiter(wire.Normal)
				for _, uid := range []uint32{1001, 1002} {
					s.pin(semsKey{uid: uid})
					defer s.unpin(semsKey{uid: uid})
				}
				leader := startLeader(w)
				defer leader.end()
				for range 3 {
					leader.asleep(t)
					if err := deface(hostile.Path()); err != nil {
						t.Fatal(err)
					}
					for range 10 {
						honest.Post()
						leader.await(t, 1002)
					}
				}
				// The semaphore is mended, so that programs that have mapped it can go on.
				for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
					leader.forget()
					if shm.Guard(hostile.Post) == nil {
						break
					}
					if time.Now().After(end) {
						t.Fatal("the semaphore is not mended")
					}
				}
				leader.await(t, 1001)
				hostile.Post()
				leader.await(t, 1001)
			})
		}
	})
}

// A user writes random bytes over its semaphores, shrinks and removes them, while users come
// and go: all posts of another user arrive.
func TestSemaphoresMutated(t *testing.T) {
	requireRoot(t)
	kernels(t, func(t *testing.T, many bool) {
		s := newSems(t, 8, many)
		honest := openLink(t, s, 1002, wire.Normal)
		s.pin(semsKey{uid: 1002})
		defer s.unpin(semsKey{uid: 1002})
		leader := startLeader(s.waiter(wire.Normal))
		defer leader.end()
		stop := make(chan struct{})
		var hostile sync.WaitGroup
		defer hostile.Wait()
		defer close(stop)
		for seed := range uint64(2) {
			hostile.Go(func() { mutate(s, rand.New(rand.NewPCG(1, seed)), stop) })
		}
		for range 300 {
			honest.Post()
			leader.await(t, 1002)
		}
	})
}

// mutate does at random what a user, and what the daemon for other users, can do.
func mutate(s *submitSems, rng *rand.Rand, stop chan struct{}) {
	pins := map[uint32]int{}
	defer func() {
		for uid, n := range pins {
			for range n {
				s.unpin(semsKey{uid: uid})
			}
		}
	}()
	for {
		select {
		case <-stop:
			return
		default:
		}
		uid := 1003 + rng.Uint32N(8) // one more than have room
		path, err := s.link(uid, wire.Normal)
		if err != nil {
			path = filepath.Join(shm.Dir, "kv3fs-test-none") // all sets are in use
		}
		var b [32]byte
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		switch rng.IntN(12) {
		case 0:
			_ = os.Remove(path)
		case 1:
			if !raceEnabled {
				_ = os.Truncate(path, rng.Int64N(40))
			}
		case 2, 3:
			if pins[uid] < 3 {
				pins[uid]++
				s.pin(semsKey{uid: uid})
			}
		case 4, 5, 6:
			if pins[uid] > 0 {
				pins[uid]--
				s.unpin(semsKey{uid: uid})
			}
		default:
			_ = overwrite(path, b[:1+rng.IntN(32)])
		}
	}
}

func overwrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, 0)
	return err
}

// leader waits for posts as the poller's does, with bounded waits.
type leader struct {
	w     *submitWaiter
	quit  atomic.Bool
	done  chan struct{}
	mu    sync.Mutex
	seen  map[uint32]bool
	waits int
}

func startLeader(w *submitWaiter) *leader {
	l := &leader{w: w, done: make(chan struct{}), seen: map[uint32]bool{}}
	go func() {
		defer close(l.done)
		for !l.quit.Load() {
			w.wait(pollEvery)
			l.mu.Lock()
			for _, uid := range w.posted(nil) {
				l.seen[uid] = true
			}
			l.waits++
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *leader) end() {
	l.quit.Store(true)
	l.w.wake()
	<-l.done
}

// await waits until a user's post has arrived.
func (l *leader) await(t *testing.T, uid uint32) {
	t.Helper()
	l.until(t, func() bool {
		if !l.seen[uid] {
			return false
		}
		delete(l.seen, uid)
		return true
	})
}

// asleep waits until the leader has waited in vain, so that it is probably waiting again.
func (l *leader) asleep(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	before := l.waits
	l.mu.Unlock()
	l.until(t, func() bool { return l.waits > before })
}

func (l *leader) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}

func (l *leader) until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		l.mu.Lock()
		done := ok()
		l.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a post did not arrive")
		}
	}
}

// The daemon's own wake-up reaches a leader that has no user to wait for, and is not lost if
// it comes first.
func TestWakeWithoutUsers(t *testing.T) {
	kernels(t, func(t *testing.T, many bool) {
		w := newSems(t, 4, many).waiter(wire.High)
		began := time.Now()
		w.wake()
		w.wait(time.Minute)
		woken := make(chan struct{})
		go func() {
			defer close(woken)
			w.wait(time.Minute)
		}()
		w.wake()
		<-woken
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("woken after %v", took)
		}
	})
}

// The daemon's own wake-up also reaches a leader that waits for users, and at once.
func TestWakeWithUsers(t *testing.T) {
	requireRoot(t)
	kernels(t, func(t *testing.T, many bool) {
		s := newSems(t, 4, many)
		for _, uid := range []uint32{1001, 1002} {
			openLink(t, s, uid, wire.Low)
			s.pin(semsKey{uid: uid})
			defer s.unpin(semsKey{uid: uid})
		}
		w := s.waiter(wire.Low)
		began := time.Now()
		const rounds = 400
		for range rounds {
			woken := make(chan struct{})
			go func() {
				defer close(woken)
				w.wait(time.Minute)
				w.posted(nil)
			}()
			w.wake()
			<-woken
		}
		if took := time.Since(began); took > rounds/2*pollEvery {
			t.Errorf("%d wake-ups took %v: they were not noticed before the wait's bound", rounds, took)
		}
	})
}

// A user that removes its semaphore gets another one at the next look at the link, and the
// log has one line about it, however often.
func TestRemovedSemaphoreIsReplaced(t *testing.T) {
	requireRoot(t)
	var said atomic.Int32
	s := newSubmitSems(slog.New(countingHandler{&said}), 4)
	defer s.close(false)
	s.pin(semsKey{uid: 1001})
	defer s.unpin(semsKey{uid: 1001})
	spoils := []func(path string) error{
		os.Remove,
		func(path string) error { return os.Rename(path, path+"-moved") },
		func(path string) error { return os.Chmod(path, 0) },
	}
	if !raceEnabled {
		spoils = append(spoils, func(path string) error { return os.Truncate(path, 0) })
	}
	for _, spoil := range spoils {
		before := openLink(t, s, 1001, wire.Low)
		if err := spoil(before.Path()); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(before.Path() + "-moved")
		after := openLink(t, s, 1001, wire.Low)
		if after.Path() == before.Path() {
			t.Error("the link still leads to a semaphore that is spoilt")
		}
		after.Post()
		awaitPosts(t, s.waiter(wire.Low), []uint32{1001})
	}
	if n := said.Load(); n != 1 {
		t.Errorf("%d lines in the log, want 1", n)
	}
}

type countingHandler struct{ n *atomic.Int32 }

func (h countingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h countingHandler) Handle(context.Context, slog.Record) error { h.n.Add(1); return nil }
func (h countingHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h countingHandler) WithGroup(string) slog.Handler             { return h }

// What the leader pays at each look: with one user, and with as many as it awaits itself.
func BenchmarkPosted(b *testing.B) {
	for _, users := range []uint32{1, 8, 127, 1000} {
		b.Run(fmt.Sprint(users), func(b *testing.B) {
			s := newSubmitSems(slog.New(slog.DiscardHandler), int(users))
			defer s.close(false)
			for uid := range users {
				if _, err := s.link(uid, wire.Normal); err != nil {
					b.Skip(err)
				}
				s.pin(semsKey{uid: uid})
				defer s.unpin(semsKey{uid: uid})
			}
			w := s.waiter(wire.Normal)
			var uids []uint32
			for b.Loop() {
				uids = w.posted(uids[:0])
			}
		})
	}
}
