package capacity

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/usrbio"
)

// client does random things to the files of a mount, through it and through a ring. Errors do
// not matter: there may be no room, and the daemon is killed.
type client struct {
	*rand.Rand
	mount string
	own   string // no other client links files there
	open  []*os.File
	m     *usrbio.Mount
	ring  *usrbio.Ring
	iov   *usrbio.Iov
}

const clientIovBytes = 64 << 10

// connect opens a ring. Without one, the client uses files only.
func (c *client) connect(ctx context.Context) {
	m, err := usrbio.Open(ctx, c.mount)
	if err != nil {
		return
	}
	if iov, err := m.NewIov(ctx, clientIovBytes, usrbio.IovOptions{}); err == nil {
		if ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 4, Write: true}); err == nil {
			c.ring, c.iov = ring, iov
		}
	}
	c.m = m
}

func (c *client) close() {
	for _, f := range c.open {
		f.Close()
	}
	c.open = nil
	if c.m != nil {
		c.m.Close(context.Background())
		c.m, c.ring = nil, nil
	}
}

var accountedDirs = []string{"", "a", "a/b", "c"}

func (c *client) path() string {
	return filepath.Join(c.mount, accountedDirs[c.IntN(len(accountedDirs))], fmt.Sprintf("n%d", c.IntN(12)))
}

func (c *client) step(ctx context.Context) {
	size := int64(c.IntN(128 << 10))
	var f *os.File
	if len(c.open) > 0 {
		f = c.open[c.IntN(len(c.open))]
	}
	switch n := c.IntN(12); {
	case n < 2 || f == nil:
		if f, err := os.OpenFile(c.path(), os.O_RDWR|os.O_CREATE|[]int{0, os.O_TRUNC, os.O_EXCL}[c.IntN(3)], 0o644); err == nil {
			c.open = append(c.open, f)
		}
	case n < 5:
		f.WriteAt(make([]byte, size), int64(c.IntN(256<<10)))
	case n == 5 && c.ring != nil:
		within, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if file, err := c.m.Register(within, f); err == nil {
			c.ring.Do(within, []usrbio.Request{{File: file, FileOffset: size, Iov: c.iov, Bytes: min(size, clientIovBytes)}})
			file.Close(within)
		}
	case n == 6:
		unix.Fallocate(int(f.Fd()), []uint32{0, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE}[c.IntN(2)], size, size+1)
	case n == 7:
		f.Truncate(size)
	case n == 8:
		os.Remove(c.path())
	case n == 9:
		os.Rename(c.path(), c.path())
	case n == 10:
		at := filepath.Join(c.own, fmt.Sprintf("n%d", c.IntN(4)))
		os.WriteFile(at, make([]byte, size), 0o644)
		os.Link(at, at+".link")
	default:
		c.open = slices.DeleteFunc(c.open, func(o *os.File) bool { return o == f })
		f.Close()
	}
}

// onDisk returns what each directory and all below it take, by its path.
func onDisk(t *testing.T, data string) map[string]int64 {
	t.Helper()
	taken := make(map[string]int64)
	seen := make(map[uint64]bool)
	err := filepath.WalkDir(data, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Name() == ".kv3fs" {
			return fs.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		dir, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			taken[dir] += 0
		} else {
			dir = filepath.Dir(dir)
		}
		if seen[st.Ino] {
			return nil
		}
		seen[st.Ino] = true
		for ; ; dir = filepath.Dir(dir) {
			taken[dir] += st.Blocks * 512
			if dir == "." {
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

// dial returns a client of the daemon over a data directory.
func dial(t *testing.T, data string) *admin.Client {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(data, ".kv3fs", "hosts", "*", admin.SocketName))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets %q, %v; want one", sockets, err)
	}
	c, err := admin.Dial(t.Context(), []string{filepath.Dir(sockets[0])}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// said returns what a daemon says that each directory and all below it take, and whether it
// has seen everything since its start.
func said(t *testing.T, data string) (taken map[string]int64, complete bool) {
	t.Helper()
	ctx := t.Context()
	c := dial(t, data)
	defer c.Close()
	state, err := c.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	taken = make(map[string]int64)
	err = c.Usage(ctx, ".", 100, func(u keeper.Usage) error {
		taken[string(u.Path)] = u.Bytes
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return taken, state.Scanned
}

// same waits until the daemon says what is on the disk: some events come after the calls.
func same(t *testing.T, when, data string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		says, complete := said(t, data)
		is := onDisk(t, data)
		if complete && maps.Equal(says, is) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: the daemon says (all seen: %v) %v; on the disk there are %v", when, complete, says, is)
		}
	}
}

// Whatever clients do through the mount and rings, and whenever the daemon is killed, the next one
// knows what every directory takes, with a quota on one.
func TestAccountsOutliveKills(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 16))
	disk := ownDisk(t, 256<<20)
	d := daemontest.ServeWith(t, daemontest.Options{Data: disk, Flags: []string{"--capacity", "128MiB", "--pages-listen", "off"}})
	for _, dir := range accountedDirs[1:] {
		if err := os.Mkdir(filepath.Join(d.Mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, disk)
	if err := c.SetQuota(t.Context(), "a", 2<<20); err != nil {
		t.Fatal(err)
	}
	c.Close()
	const rounds, clients, steps = 4, 3, 150
	for round := range rounds {
		kill := r.IntN(clients * steps)
		var done sync.Mutex
		var all sync.WaitGroup
		for i := range clients {
			own := filepath.Join(d.Mount, fmt.Sprintf("own%d", i))
			c := &client{Rand: rand.New(rand.NewPCG(r.Uint64(), uint64(i))), mount: d.Mount, own: own}
			all.Go(func() {
				os.Mkdir(own, 0o755)
				c.connect(t.Context())
				defer c.close()
				for range steps {
					c.step(t.Context())
					done.Lock()
					if kill--; kill == 0 && round < rounds-1 {
						d.Kill()
					}
					done.Unlock()
				}
			})
		}
		all.Wait()
		if !d.Alive() {
			d.Start(t)
			same(t, fmt.Sprintf("round %d, after a kill", round), disk)
		}
	}
	same(t, "after events", disk)
	d.Kill()
	d.Start(t)
	same(t, "after the last kill", disk)
	if taken := onDisk(t, disk); taken["."] == 0 {
		t.Error("the clients have left nothing")
	}
}
