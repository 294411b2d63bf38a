package lease

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

// clock is one that a test moves.
type clock struct{ at time.Duration }

func (c *clock) now() time.Duration { return c.at }

// sharer is one of several hosts that share a directory.
type sharer struct {
	*Lease
	clock *clock
}

const period = 10 * time.Second

func openDir(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// newHost returns a host whose clock shows any time.
func newHost(t testing.TB, dir, name string) *sharer {
	t.Helper()
	c := &clock{time.Duration(rand.Int64N(int64(1000 * time.Hour)))}
	l, err := New(openDir(t, dir), Options{Period: period, Me: Holder{Identity: name, Host: name}, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	return &sharer{l, c}
}

func (h *sharer) try(t testing.TB) Standing {
	t.Helper()
	s, err := h.Try()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hold(t testing.TB, h *sharer, token uint64) {
	t.Helper()
	if s := h.try(t); !s.Held || s.Token != token || h.Token() != token {
		t.Fatalf("%+v, want to hold token %d", s, token)
	}
	if err := h.Check(); err != nil {
		t.Fatal(err)
	}
}

func wait(t testing.TB, h *sharer) Standing {
	t.Helper()
	s := h.try(t)
	if s.Held || h.Check() == nil {
		t.Fatalf("%+v: it has the lease", s)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A lease that is renewed stays; one that is not is taken after its period by the watcher's clock,
// and its former holder notices, whenever it comes back.
func TestTakeOver(t *testing.T) {
	dir := t.TempDir()
	a, b := newHost(t, dir, "a"), newHost(t, dir, "b")
	hold(t, a, 1)
	if s := wait(t, b); s.Holder.Host != "a" || s.Wait != period || s.Changed {
		t.Fatalf("%+v", s)
	}
	for range 10 {
		a.clock.at += period / 6
		b.clock.at += period / 3
		must(t, a.Renew())
		if s := wait(t, b); !s.Changed || s.Wait != period {
			t.Fatalf("%+v", s)
		}
	}
	// a is stopped.
	b.clock.at += period - 1
	if s := wait(t, b); s.Changed || s.Wait != 1 {
		t.Fatalf("%+v", s)
	}
	b.clock.at++
	hold(t, b, 2)
	// Its own clock stood still as well: its virtual machine was stopped.
	a.clock.at += checkHolds
	if err := a.Check(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	if err := a.Renew(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	if s := wait(t, a); s.Holder.Host != "b" || s.Token != 2 {
		t.Fatalf("%+v", s)
	}
	must(t, b.Check())
	must(t, b.Renew())
	must(t, b.Release())
	hold(t, a, 3)
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 1 || filepath.Base(names[0]) != "lease-000000000003" {
		t.Errorf("files %q", names)
	}
}

// A holder whose lease is stale checks in vain without a look at the directory, and takes it anew
// with another token.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	a, b := newHost(t, dir, "a"), newHost(t, dir, "b")
	hold(t, a, 1)
	a.clock.at += period/2 + 1
	if err := a.Check(); !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
	must(t, a.Renew())
	must(t, a.Check())
	if a.Token() != 2 {
		t.Errorf("token %d", a.Token())
	}
	wait(t, b)
	b.clock.at += period
	hold(t, b, 3)
	a.clock.at += period
	if err := a.Renew(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
}

// Of many that try at once, one gets the lease.
func TestRace(t *testing.T) {
	dir := t.TempDir()
	var hosts []*sharer
	for i := range 16 {
		hosts = append(hosts, newHost(t, dir, fmt.Sprint(i)))
	}
	for token := uint64(1); token <= 20; token++ {
		var all sync.WaitGroup
		for _, h := range hosts {
			all.Go(func() {
				if _, err := h.Try(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		held := 0
		for _, h := range hosts {
			if h.Check() == nil {
				held++
				if h.Token() != token {
					t.Fatalf("token %d, want %d", h.Token(), token)
				}
				must(t, h.Release())
			}
		}
		if held != 1 {
			t.Fatalf("%d hold the lease", held)
		}
	}
}

// Hosts whose clocks show different times and go at different rates try, renew, are stopped and come
// back at random: never do two hold the lease, and tokens only grow.
func TestManyHosts(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	dir := t.TempDir()
	type member struct {
		*sharer
		rate    float64
		stopped time.Duration // for how long yet
	}
	var all []*member
	for i := range 4 {
		all = append(all, &member{sharer: newHost(t, dir, fmt.Sprint(i)), rate: 0.8 + r.Float64()*0.6})
	}
	var last uint64
	takeOvers := 0
	for range 1500 {
		step := time.Duration(r.Int64N(int64(period / 8)))
		for _, m := range all {
			m.clock.at += time.Duration(float64(step) * m.rate)
			m.stopped = max(0, m.stopped-step)
		}
		m := all[r.IntN(len(all))]
		switch {
		case m.stopped > 0:
		case r.IntN(25) == 0:
			m.stopped = time.Duration(r.Int64N(int64(3 * period)))
		case r.IntN(200) == 0:
			if err := m.Release(); err != nil {
				t.Fatal(err)
			}
		case m.Token() == 0:
			s := m.try(t)
			if s.Held {
				if s.Token <= last {
					t.Fatalf("token %d after %d", s.Token, last)
				}
				last = s.Token
				takeOvers++
			}
		default:
			err := m.Renew()
			if err != nil && !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			if err == nil {
				if m.Token() < last {
					t.Fatalf("renewed token %d after %d", m.Token(), last)
				}
				last = m.Token()
			}
		}
		// Also those that are stopped: what they would find if they came back now.
		var holders []uint64
		for _, m := range all {
			if m.Check() == nil {
				holders = append(holders, m.Token())
			}
		}
		if len(holders) > 1 {
			t.Fatalf("tokens %d are all in force", holders)
		}
	}
	t.Logf("the lease was taken %d times", takeOvers)
	if takeOvers < 2 {
		t.Errorf("only %d took the lease over", takeOvers)
	}
}

// Whoever goes by an old list, and makes a file with a number below that of the holder, withdraws.
func TestOldList(t *testing.T) {
	dir := t.TempDir()
	a, b := newHost(t, dir, "a"), newHost(t, dir, "b")
	for token := uint64(1); token < 5; token++ {
		hold(t, a, token)
		must(t, a.Release())
	}
	hold(t, a, 5)
	b.mu.Lock()
	s, err := b.takeLocked(1)
	b.mu.Unlock()
	if err != nil || s.Held || s.Token != 5 || b.Check() == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	must(t, a.Check())
	must(t, a.Renew())
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 1 {
		t.Errorf("files %q", names)
	}
}

// The holder stops when its file is gone, replaced or overwritten, and nobody trusts what such a
// file says.
func TestDamage(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"removed":  os.Remove,
		"replaced": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
		"empty":    func(path string) error { return os.Truncate(path, 0) },
		"other":    func(path string) error { return os.WriteFile(path, make([]byte, recordBytes), 0o600) },
		"long": func(path string) error {
			return os.WriteFile(path, make([]byte, 3*recordBytes), 0o600)
		},
	} {
		dir := t.TempDir()
		a, b := newHost(t, dir, "a"), newHost(t, dir, "b")
		hold(t, a, 1)
		must(t, damage(filepath.Join(dir, nameOf(1))))
		a.clock.at += checkHolds
		if err := a.Check(); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
		if what == "removed" {
			hold(t, b, 1)
			continue
		}
		if s := wait(t, b); s.Wait != period {
			t.Errorf("%s: %+v", what, s)
		}
		b.clock.at += period
		hold(t, b, 2)
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, nameOf(1)), 0o700))
	if s, err := newHost(t, dir, "a").Try(); err == nil {
		t.Errorf("a directory of that name: %+v", s)
	}
	if _, err := New(openDir(t, dir), Options{Period: time.Millisecond}); err == nil {
		t.Error("a period of a millisecond")
	}
}

// On a full disk the lease is taken and renewed, and others see that.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	a, b := newHost(t, dir, "a"), newHost(t, dir, "b")
	f, err := os.Create(filepath.Join(dir, "full"))
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	must(t, f.Close())
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	hold(t, a, 1)
	for range 5 {
		a.clock.at += period / 3
		must(t, a.Renew())
		must(t, a.Check())
		b.clock.at += period * 2 / 3
		wait(t, b)
	}
	must(t, os.Remove(f.Name()))
	must(t, a.Renew())
	if s := wait(t, b); s.Holder.Host != "a" || !s.Changed {
		t.Errorf("%+v", s)
	}
	// A lease that was written while there was room is renewed in place.
	f, err = os.Create(filepath.Join(dir, "full"))
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	must(t, f.Close())
	a.clock.at += period / 3
	must(t, a.Renew())
	if s := wait(t, b); s.Holder.Host != "a" || !s.Changed {
		t.Errorf("%+v", s)
	}
	must(t, a.Release())
	hold(t, b, 2)
}

// TestDeadHolder: the lease of a holder that is known to have ended is taken at once, and only that.
func TestDeadHolder(t *testing.T) {
	dir := t.TempDir()
	a, b := newHost(t, dir, "a"), newHost(t, dir, "b")
	hold(t, a, 1)
	b.Dead = func(h Holder) bool { return h.Identity == "c" }
	wait(t, b)
	b.Dead = func(h Holder) bool { return h.Identity == "a" }
	hold(t, b, 2)
	a.clock.at += checkHolds
	if a.Check() == nil {
		t.Error("both have the lease")
	}
}
