package pages

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/usrbio"
)

// daemonBinary is kv3fs, built for the test; KV3FS_BIN names one that exists.
func daemonBinary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a daemon")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err == nil {
		f.Close()
	} else if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %v", err)
	} else {
		t.Skipf("NOT TESTED: %v", err)
	}
	if path := os.Getenv("KV3FS_BIN"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "kv3fs")
	build := exec.Command("go", "build", "-o", path, "github.com/kv3fs/kv3fs/cmd/kv3fs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// rings is an engine that uses the rings of a mount.
func rings(t testing.TB, mount string) transfer.Engine {
	t.Helper()
	e, err := ringio.New(ringio.Options{Mount: mount, Entries: 16, BufferBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The page file is on a kv3fs mount, and its data goes through the rings.
func TestStoreOnAMount(t *testing.T) {
	d, err := measure.StartDaemon(t.Context(), daemonBinary(t), t.TempDir(), "auto")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	// One directory on the mount serves as all of the suite's directories. It is emptied
	// for each.
	var services hosts
	latest, onMount := "", filepath.Join(d.Mount, "suite")
	storesuite.Run(t, storesuite.Subject{
		Versions: true,
		Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
			if dir != latest {
				if err := os.RemoveAll(onMount); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(onMount, 0o700); err != nil {
					t.Fatal(err)
				}
				latest = dir
			}
			s, err := Open(Options{
				URL: services.at(t, dir).url(), File: filepath.Join(onMount, "pages"), Engine: rings(t, d.Mount),
				Layout: o.Layout, Namespace: o.Namespace, CapacityBytes: int64(4*o.Blocks) * strideOf(o.Layout),
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Durable: true, Damage: func(t testing.TB, _ string, seed uint64) { damage(t, onMount, seed) },
		Verified: true, OneNamespace: true, Seeds: 12,
	})
}

// mount is a daemon that can be killed and replaced.
type mount struct {
	binary, data, point string
	child               *measure.Child
}

func (m *mount) start(t *testing.T) {
	t.Helper()
	var err error
	if m.child, err = measure.StartChild(m.binary, "serve", "--data", m.data, "--mount", m.point, "--pages-listen", "off"); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := usrbio.Open(t.Context(), m.point)
		if err == nil {
			c.Close(t.Context())
			return
		}
		select {
		case <-m.child.Ended():
			t.Fatal(m.child.ExitError())
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond): // no event says when a mount works
		}
	}
}

// A daemon is killed and replaced. Confirmed blocks are there, and new blocks can be
// saved without opening the store again.
func TestTheMountIsReplaced(t *testing.T) {
	program := daemonBinary(t)
	for name, engine := range map[string]func(testing.TB, string) transfer.Engine{
		"by the kernel": func(testing.TB, string) transfer.Engine { return nil },
		"by rings":      rings,
	} {
		t.Run(name, func(t *testing.T) {
			m := &mount{binary: program, data: t.TempDir(), point: t.TempDir()}
			m.start(t)
			t.Cleanup(func() {
				if err := m.child.Stop(30 * time.Second); err != nil {
					t.Error(err)
				}
			})
			o := newHost(t, pageservice.Options{}).options(m.point, 100)
			o.Engine = engine(t, m.point)
			s := mustOpen(t, o)
			stored(t, s, keysOf(0, 10)...)
			begun := shardsOf(key(50))
			for _, one := range begun {
				content(one).Fill(one.Buf)
			}
			task, err := s.Save(t.Context(), begun[:1])
			if err := errors.Join(results(t, task, err)...); err != nil {
				t.Fatal(err)
			}
			m.child.Kill()
			for _, err := range load(t, s, keysOf(0, 10)...) {
				if errors.Is(err, kv.ErrMiss) { // the kernel may well have it
					t.Errorf("while it is away: %v", err)
				}
			}
			m.start(t)
			for errors.Join(load(t, s, key(0))...) != nil { // until the store notices the new daemon
				if t.Context().Err() != nil {
					t.Fatal("never")
				}
			}
			there(t, s, keysOf(0, 10)...)
			stored(t, s, keysOf(10, 10)...)
			there(t, s, keysOf(0, 20)...)
			task, err = s.Save(t.Context(), begun[1:])
			if err := errors.Join(results(t, task, err)...); err != nil {
				t.Fatal(err)
			}
			there(t, s, key(50))
			if got := s.Stats().CorruptBlocks; got != 0 {
				t.Errorf("%d blocks count as damaged", got)
			}
		})
	}
}
