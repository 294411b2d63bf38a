package pagesoak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// These tests fill a daemon's capacity beside the page files of an engine that has ended, and kill the daemon around
// the moment when it gives one up: whatever key it finds afterwards, the file has its bytes.

// connector is an engine with one rank, as far as the page service and the disk see it.
type connector struct {
	t      *testing.T
	daemon *daemontest.Daemon
	socket string
	name   string // of the page file
	protocol
}

const (
	connectorPages     = 64 // more than a test uses, so that it waits for none
	connectorPageBytes = 1 << 20
	keysOfARun         = 4
	soonOver           = "1s" // leases and the like that a test waits for
	notTooSoon         = "5s" // within which a slow machine confirms what it has reserved
	neverOver          = "20h"
	capacityMiB        = 8
)

// connectors are the engines.
var connectors = map[string]struct {
	file string
	with func(caller) protocol
}{
	"vllm":   {"hf3fs_vllm_data_file_0", func(c caller) protocol { return vllm{c} }},
	"sglang": {"hicache.0.bin", func(c caller) protocol { return sglang{c} }},
}

func eachConnector(t *testing.T, test func(t *testing.T, c *connector)) {
	for name, engine := range connectors {
		t.Run(name, func(t *testing.T) {
			daemontest.NeedMounts(t)
			c := &connector{t: t, name: engine.file, socket: filepath.Join(daemontest.NewDir(t), "s")}
			transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
			}}
			c.protocol = engine.with(caller{base: "http://pages", client: &http.Client{Transport: transport}, tally: &tally{}})
			test(t, c)
		})
	}
}

// serve starts a daemon, on the directories of the one before if there was one. Readers' leases last so long.
func (c *connector) serve(lease string, flags ...string) {
	c.t.Helper()
	o := daemontest.Options{Flags: append([]string{
		"--drain", "1s", "--capacity", fmt.Sprintf("%dMiB", capacityMiB), "--eviction-grace", "12h", "--pages-listen", "unix:" + c.socket,
		"--pages-lease", lease, "--pages-hold", soonOver, "--pages-reserve", notTooSoon, "--pages-quarantine", soonOver,
	}, flags...)}
	if c.daemon != nil {
		o.Data, o.Mount = c.daemon.Data, c.daemon.Mount
	}
	c.daemon = daemontest.ServeWith(c.t, o)
}

func (c *connector) data(name string) string  { return filepath.Join(c.daemon.Data, name) }
func (c *connector) mount(name string) string { return filepath.Join(c.daemon.Mount, name) }

func (c *connector) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func contentOf(key string) []byte { return bytes.Repeat([]byte(key), connectorPageBytes/len(key)) }

// keys returns the keys of a run of the engine, of 32 digits.
func (c *connector) keys(run string) (keys []string) {
	for i := range keysOfARun {
		keys = append(keys, fmt.Sprintf("%031s%d", run, i))
	}
	return keys
}

// save stores keys and returns the file, open.
func (c *connector) save(keys []string) *os.File {
	c.t.Helper()
	ctx := c.t.Context()
	c.must(c.initialize(ctx, 0, connectorPages))
	f, err := os.OpenFile(c.mount(c.name), os.O_RDWR|os.O_CREATE, 0o644)
	c.must(err)
	c.must(f.Truncate(connectorPages * connectorPageBytes))
	pages, _, err := c.allocate(ctx, 0, keys)
	c.must(err)
	var written []placed
	for i, page := range pages {
		_, err := f.WriteAt(contentOf(keys[i]), page*connectorPageBytes)
		c.must(err)
		written = append(written, placed{keys[i], page})
	}
	c.must(c.confirm(ctx, 0, written, nil))
	return f
}

// end closes the page file, as an engine that ends does, long ago.
func (c *connector) end(f *os.File) {
	c.t.Helper()
	c.must(f.Close())
	c.age(c.name)
}

// unused reports whether nobody has the page file open, the kernel for the mount included.
func (c *connector) unused() bool {
	c.t.Helper()
	f, err := os.Open(c.data(c.name))
	c.must(err)
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	if err != nil && err != unix.EAGAIN {
		c.t.Fatal(err)
	}
	return err == nil // closing ends the lease
}

// age makes a file one that was changed long ago, as soon as no close is under way any more.
func (c *connector) age(name string) {
	c.t.Helper()
	old := time.Now().Add(-20 * time.Hour)
	c.must(os.Chtimes(c.data(name), old, old))
}

// found returns how many keys the service finds. Each must have its bytes in the file.
func (c *connector) found(keys []string) (n int) {
	c.t.Helper()
	there, err := c.exists(c.t.Context(), 0, keys)
	c.must(err)
	for i, key := range keys {
		if !there[i] {
			continue
		}
		n++
		pages, _, err := c.locate(c.t.Context(), 0, []string{key})
		c.must(err)
		if pages[0] == none {
			continue // it was forgotten in between
		}
		b := make([]byte, connectorPageBytes)
		f, err := os.Open(c.data(c.name))
		c.must(err)
		_, err = f.ReadAt(b, pages[0]*connectorPageBytes)
		c.must(errors.Join(err, f.Close()))
		if !bytes.Equal(b, contentOf(key)) {
			c.t.Fatalf("%s is found on page %d, which has other bytes", key, pages[0])
		}
	}
	return n
}

// fill writes a file that is too young to go. It waits for room as every writer does.
func (c *connector) fill(name string, mib int) error {
	return os.WriteFile(c.mount(name), make([]byte, mib<<20), 0o644)
}

// mustFill fills until there is room: leases that last soonOver make a writer fail that comes before they end.
func (c *connector) mustFill(name string, mib int) {
	c.t.Helper()
	c.eventually("room for "+name, func() bool {
		err := c.fill(name, mib)
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

func (c *connector) eventually(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%s has not come; the daemon's log:\n%s", what, c.daemon.Log())
		}
	}
}

func (c *connector) there(name string) bool {
	_, err := os.Lstat(c.data(name))
	return err == nil
}

func (c *connector) wantENOSPC(name string, mib int) {
	c.t.Helper()
	if err := c.fill(name, mib); !errors.Is(err, unix.ENOSPC) {
		c.t.Fatalf("a write for which there is no room: %v", err)
	}
	c.must(os.Remove(c.mount(name)))
}

// A page file goes after everything else that may go, never while it is open or pinned, and nobody finds its keys
// afterwards, in the file that takes its place, either.
func TestPageFilesGoLastAndWithTheirKeys(t *testing.T) {
	eachConnector(t, func(t *testing.T, c *connector) {
		c.serve(soonOver, "--pages-files", ".")
		keys := c.keys("a")
		f := c.save(keys)
		const chunk = "meta-llama-SEP-Llama-3-8B@1@0@1@half.data"
		c.must(c.fill(chunk, 1))
		c.age(chunk)
		c.age(c.name)

		c.wantENOSPC("more than is there while it is open", 5)
		if c.there(chunk) {
			t.Error("a block stays where a write finds no room")
		}
		c.must(c.fill(chunk, 1))
		c.age(chunk)
		c.end(f)
		c.must(c.fill("young", 2)) // the high watermark is 7.6 MiB, the low one 7.2
		c.must(c.fill("younger", 1))
		c.eventually("the removal of a block", func() bool { return !c.there(chunk) })
		if n := c.found(keys); n != len(keys) {
			t.Fatalf("%d keys are found after a block was enough", n)
		}

		c.pin("pin")
		c.wantENOSPC("more than is there while it is pinned", 3)
		if n := c.found(keys); n != len(keys) {
			t.Fatalf("%d keys are found of a pinned file", n)
		}
		c.pin("unpin")
		c.mustFill("youngest", 3)
		if c.there(c.name) {
			t.Error("the page file is still there")
		}
		if n := c.found(keys); n > 0 {
			t.Errorf("%d keys are found in a file that is gone", n)
		}
		c.must(os.Remove(c.mount("youngest")))

		later := c.keys("b")
		c.save(later).Close()
		if n := c.found(append(keys, later...)); n != len(later) {
			t.Errorf("%d keys are found in a new file, want %d", n, len(later))
		}
	})
}

func (c *connector) pin(verb string) {
	c.t.Helper()
	binary, err := daemontest.Binary()
	c.must(err)
	if out, err := exec.CommandContext(c.t.Context(), binary, verb, c.mount(c.name)).CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// Unless the operator says whose they are, page files never go.
func TestPageFilesOfUnknownServicesStay(t *testing.T) {
	eachConnector(t, func(t *testing.T, c *connector) {
		c.serve(soonOver)
		keys := c.keys("a")
		c.end(c.save(keys))
		c.wantENOSPC("more than is there", 5)
		if n := c.found(keys); n != len(keys) {
			t.Errorf("%d keys are found", n)
		}

		// Nor do they if the service does not know their rank.
		c.daemon.Kill()
		c.serve(soonOver, "--pages-files", "other=.")
		c.wantENOSPC("more than is there", 5)
		if n := c.found(keys); n != len(keys) {
			t.Errorf("%d keys are found", n)
		}
		if log := c.daemon.Log(); !strings.Contains(log, "a page file stays") {
			t.Errorf("the log does not say why the page file stays:\n%s", log)
		}
	})
}

// What a reader has a lease of stays, also when a daemon with a shorter lease follows: the reader goes by what it was told.
func TestLeasedPageFilesStay(t *testing.T) {
	eachConnector(t, func(t *testing.T, c *connector) {
		c.serve(neverOver, "--pages-files", ".")
		keys := c.keys("a")
		f := c.save(keys)
		if n := c.found(keys); n != len(keys) {
			t.Fatalf("%d keys are found", n)
		}
		c.end(f)
		for range 2 {
			c.wantENOSPC("more than is there", 5)
			if n := c.found(keys); n != len(keys) {
				t.Fatalf("%d keys are found that are leased", n)
			}
			c.daemon.Kill()
			c.serve(soonOver, "--pages-files", ".", "--pages-reserve", soonOver)
		}
	})
}

// A daemon that is killed before, between and after the steps of giving a page file up finds no key whose bytes are
// not there.
func TestKilledWhilePageFilesGo(t *testing.T) {
	eachConnector(t, func(t *testing.T, c *connector) {
		c.serve(soonOver, "--pages-files", ".", "--pages-reserve", soonOver)
		keys := c.keys("a")
		c.end(c.save(keys))
		c.eventually("the end of the file's use", c.unused) // what the kernel has from a killed daemon it keeps for as long as its mount is there
		c.daemon.Kill()

		// A program has the file open in the data directory, so that it stays when its keys are forgotten.
		c.serve(soonOver, "--pages-files", ".", "--pages-reserve", soonOver)
		if n := c.found(keys); n != len(keys) {
			t.Fatalf("%d keys are found after a kill before the first step", n)
		}
		outside, err := os.Open(c.data(c.name))
		c.must(err)
		defer outside.Close()
		c.eventually("the forgetting of the keys", func() bool {
			if err := c.fill("young", 5); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("a write for which there is no room: %v", err)
			}
			return strings.Contains(c.daemon.Log(), "its keys were forgotten")
		})
		if n := c.found(keys); n != 0 {
			t.Fatalf("%d keys are found that were forgotten", n)
		}
		c.daemon.Kill()

		c.serve(soonOver, "--pages-files", ".", "--pages-reserve", soonOver)
		if n := c.found(keys); n != 0 || !c.there(c.name) {
			t.Fatalf("%d keys are found after a kill between the steps; the file is there: %t", n, c.there(c.name))
		}
		c.must(outside.Close())
		c.mustFill("young", 5)
		c.eventually("the removal of the page file", func() bool { return !c.there(c.name) })
		c.daemon.Kill()

		c.serve(soonOver, "--pages-files", ".")
		c.must(os.Remove(c.mount("young")))
		later := c.keys("b")
		c.save(later).Close()
		if n := c.found(append(keys, later...)); n != len(later) {
			t.Errorf("%d keys are found in a new file, want %d", n, len(later))
		}
	})
}

// Whoever removes or renames a page file by hand loses its keys at once, whether the daemon sees it or finds it at its start.
func TestPageFilesRemovedByHand(t *testing.T) {
	eachConnector(t, func(t *testing.T, c *connector) {
		c.serve(soonOver, "--pages-files", "sub", "--capacity", "64MiB")
		c.name = filepath.Join("sub", c.name)
		c.must(os.Mkdir(c.mount("sub"), 0o755))
		lost := func(what, run string, do func()) {
			t.Helper()
			keys := c.keys(run)
			f := c.save(keys)
			if n := c.found(keys); n != len(keys) {
				t.Fatalf("%d keys are found", n)
			}
			c.must(f.Close())
			do()
			there, err := c.exists(t.Context(), 0, keys)
			c.must(err)
			if slices.Contains(there, true) {
				t.Fatalf("keys are found after %s: %v", what, there)
			}
		}
		lost("its removal", "a", func() { c.must(os.Remove(c.mount(c.name))) })
		lost("its renaming", "b", func() { c.must(os.Rename(c.mount(c.name), c.mount("away"))) })
		lost("its replacement", "c", func() { c.must(os.Rename(c.mount("away"), c.mount(c.name))) })
		lost("the renaming of its directory", "d", func() {
			c.must(os.Rename(c.mount("sub"), c.mount("moved")))
			c.must(os.Mkdir(c.mount("sub"), 0o755))
		})
		lost("its removal while no daemon runs", "e", func() {
			c.daemon.Kill()
			c.must(os.Remove(c.data(c.name)))
			c.serve(soonOver, "--pages-files", "sub", "--capacity", "64MiB")
		})
		lost("its emptying while no daemon runs", "f", func() {
			c.daemon.Kill()
			c.must(os.Truncate(c.data(c.name), 0))
			c.serve(soonOver, "--pages-files", "sub", "--capacity", "64MiB")
		})
	})
}
